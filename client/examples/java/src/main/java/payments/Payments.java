package payments;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import payments.idempotent.Execution;

/** The servlet, which knows nothing of claims. */
final class Payments extends HttpServlet {
  private static final long serialVersionUID = 1;
  private final transient Wallet wallet = new Wallet();

  @Override
  protected void doGet(HttpServletRequest request, HttpServletResponse response)
      throws IOException {
    JsonObject answer = new JsonObject();
    answer.addProperty("asked", wallet.asked(request.getParameter("account")));
    send(response, 200, answer);
  }

  @Override
  protected void doPost(HttpServletRequest request, HttpServletResponse response)
      throws IOException {
    JsonObject payment = JsonParser.parseReader(request.getReader()).getAsJsonObject();
    String order = request.getHeader("X-Wallet");
    Wallet.Said said =
        wallet.charge(payment, Execution.of(request), order == null ? "" : order);
    for (int n = 0; n < said.receipts(); n++) { // Of one name, to be replayed as they are.
      response.addHeader("X-Receipt", Integer.toString(n));
    }
    send(response, said.status(), said.answer());
  }

  private static void send(HttpServletResponse response, int status, JsonObject answer)
      throws IOException {
    response.setStatus(status);
    response.setContentType("application/json");
    response.getWriter().write(answer.toString());
  }
}

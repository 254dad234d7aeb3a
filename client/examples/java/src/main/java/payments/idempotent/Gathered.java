package payments.idempotent;

import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.ByteArrayOutputStream;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Map.Entry;

/** A response that is kept back until it is whole. */
final class Gathered extends HttpServletResponseWrapper {
  private final ByteArrayOutputStream body = new ByteArrayOutputStream();
  private final PrintWriter writer =
      new PrintWriter(new OutputStreamWriter(body, StandardCharsets.UTF_8));

  Gathered(HttpServletResponse response) {
    super(response);
  }

  Answer answer() {
    writer.flush();
    List<Entry<String, String>> headers = new ArrayList<>();
    for (String name : new LinkedHashSet<>(getHeaderNames())) { // Tomcat repeats them.
      if (!name.equalsIgnoreCase("Content-Type")) {
        getHeaders(name).forEach(value -> headers.add(Map.entry(name, value)));
      }
    }
    if (getContentType() != null) { // Tomcat does not count it among the headers.
      headers.add(Map.entry("Content-Type", getContentType()));
    }
    return new Answer(getStatus(), headers, body.toByteArray());
  }

  @Override
  public PrintWriter getWriter() {
    return writer;
  }

  @Override
  public ServletOutputStream getOutputStream() {
    return new ServletOutputStream() {
      @Override
      public void write(int piece) {
        body.write(piece);
      }

      @Override
      public void write(byte[] pieces, int from, int count) {
        body.write(pieces, from, count);
      }

      @Override
      public boolean isReady() {
        return true;
      }

      @Override
      public void setWriteListener(WriteListener listener) {
        throw new UnsupportedOperationException();
      }
    };
  }

  @Override
  public void sendError(int status) {
    setStatus(status);
  }

  @Override
  public void sendError(int status, String message) {
    setStatus(status);
  }

  @Override
  public void flushBuffer() {}
}

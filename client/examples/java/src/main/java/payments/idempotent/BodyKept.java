package payments.idempotent;

import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/** A request whose body was read for its hash, and can be read again. */
final class BodyKept extends HttpServletRequestWrapper {
  private final byte[] body;

  BodyKept(HttpServletRequest request) throws IOException {
    super(request);
    body = request.getInputStream().readAllBytes();
  }

  byte[] hash() {
    String query = getQueryString() == null ? "" : "?" + getQueryString();
    String type = getContentType() == null ? "" : getContentType();
    return RequestHash.of(raw(getMethod()), raw(getRequestURI() + query), raw(type), body);
  }

  private static byte[] raw(String text) {
    return text.getBytes(StandardCharsets.ISO_8859_1);
  }

  @Override
  public ServletInputStream getInputStream() {
    ByteArrayInputStream bytes = new ByteArrayInputStream(body);
    return new ServletInputStream() {
      @Override
      public int read() {
        return bytes.read();
      }

      @Override
      public boolean isFinished() {
        return bytes.available() == 0;
      }

      @Override
      public boolean isReady() {
        return true;
      }

      @Override
      public void setReadListener(ReadListener listener) {
        throw new UnsupportedOperationException();
      }
    };
  }

  @Override
  public BufferedReader getReader() {
    return new BufferedReader(new InputStreamReader(getInputStream(), StandardCharsets.UTF_8));
  }
}

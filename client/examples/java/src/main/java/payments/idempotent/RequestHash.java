package payments.idempotent;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/** The request hash, the same in every language. */
public final class RequestHash {
  private static final String VERSION = "idempotency.request.v1";

  private RequestHash() {}

  /**
   * SHA-256 over a version and the parts, each preceded by its length as 8 bytes, big-endian. Of an
   * HTTP request: method, target, content type and body, as they came. Nothing is normalised.
   */
  public static byte[] of(byte[]... parts) {
    try {
      MessageDigest digest = MessageDigest.getInstance("SHA-256");
      add(digest, VERSION.getBytes(StandardCharsets.US_ASCII));
      for (byte[] part : parts) {
        add(digest, part);
      }
      return digest.digest();
    } catch (NoSuchAlgorithmException e) {
      throw new IllegalStateException(e); // Every Java has it.
    }
  }

  private static void add(MessageDigest digest, byte[] part) {
    digest.update(ByteBuffer.allocate(Long.BYTES).putLong(part.length).array());
    digest.update(part);
  }
}

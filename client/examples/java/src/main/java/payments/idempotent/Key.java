package payments.idempotent;

import jakarta.servlet.http.HttpServletRequest;
import java.util.Collections;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The header Idempotency-Key. */
final class Key {
  /** A string of RFC 8941, or a bare token as most clients send it. */
  private static final Pattern QUOTED = Pattern.compile("\"((?:[ !#-\\[\\]-~]|\\\\[\"\\\\])+)\"");

  private static final Pattern BARE = Pattern.compile("[!#-+\\-.-:<-~]+");

  private Key() {}

  /** Null: missing, malformed or repeated. */
  static String of(HttpServletRequest request) {
    List<String> values = Collections.list(request.getHeaders("Idempotency-Key"));
    if (values.size() != 1) {
      return null;
    }
    String value = values.get(0).trim();
    Matcher quoted = QUOTED.matcher(value);
    if (quoted.matches()) {
      return quoted.group(1).replaceAll("\\\\(.)", "$1");
    }
    return BARE.matcher(value).matches() ? value : null;
  }
}

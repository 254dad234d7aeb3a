package payments;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import payments.idempotent.RequestHash;

/** The examples of the request hash that all languages share. */
final class Vectors {
  private Vectors() {}

  /** How many hold; throws at the first that does not. */
  static int check(Path path) throws IOException {
    List<String> lines = Files.readAllLines(path);
    for (String line : lines.subList(1, lines.size())) {
      String[] columns = line.split("\t", -1); // name, number of parts, parts, digest
      byte[] hash = RequestHash.of(parts(Integer.parseInt(columns[1]), columns[2]));
      if (!HexFormat.of().formatHex(hash).equals(columns[3])) {
        throw new IllegalStateException(columns[0] + ": the request hash is another one");
      }
    }
    return lines.size() - 1;
  }

  /** A part is written in hex; {@code hex*n} is n times those bytes. */
  private static byte[][] parts(int count, String list) {
    byte[][] parts = new byte[count][];
    String[] written = list.split(",", -1);
    for (int i = 0; i < count; i++) {
      String[] hex = written[i].split("\\*");
      int times = hex.length > 1 ? Integer.parseInt(hex[1]) : 1;
      parts[i] = HexFormat.of().parseHex(hex[0].repeat(times));
    }
    return parts;
  }
}

package payments;

import com.google.gson.JsonObject;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import payments.idempotent.Execution;
import payments.idempotent.NothingHappened;

/**
 * The other side. An order says what it is to do: slow-MS, throw, nothing-happened, decline-402,
 * error-500, long-BYTES, receipts-N; empty: charge.
 */
final class Wallet {
  record Said(int status, JsonObject answer, int receipts) {}

  private final Map<String, Integer> asked = new ConcurrentHashMap<>();

  int asked(String account) {
    return asked.getOrDefault(account, 0);
  }

  Said charge(JsonObject payment, Execution execution, String order) {
    asked.merge(payment.get("account").getAsString(), 1, Integer::sum);
    int receipts = 2;
    String[] words = order.split("-", 2);
    switch (words[0]) {
      case "nothing" -> throw new NothingHappened("the wallet refused to begin");
      case "throw" -> throw new IllegalStateException("the wallet hung up");
      case "slow" -> sleep(Long.parseLong(words[1]));
      case "decline", "error" -> {
        JsonObject why = new JsonObject();
        why.addProperty("error", words[0]);
        return new Said(Integer.parseInt(words[1]), why, 0);
      }
      case "receipts" -> receipts = Integer.parseInt(words[1]);
      case "long" -> payment.addProperty("receipt", "x".repeat(Integer.parseInt(words[1])));
      default -> {}
    }
    if (!execution.permitted()) { // Asked before what cannot be undone.
      throw new IllegalStateException("the claim was lost while the wallet was slow");
    }
    payment.addProperty("payment", UUID.randomUUID().toString());
    payment.addProperty("wallet_key", execution.downstreamKey());
    return new Said(201, payment, receipts);
  }

  private static void sleep(long ms) {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }
}

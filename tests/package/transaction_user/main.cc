// Places an order once: not while its transaction is rolled back, then in one
// that is committed. A third is replayed to, and so is a Claim through the
// coordinator of the same database. With status 0 only if all of it was so.
//
// usage: orders DATABASE_URI HOST:PORT KEY
#include <cstdio>
#include <exception>
#include <pqxx/pqxx>
#include <string>

#include "idempotency/client/client.h"
#include "idempotency/client/request_hash.h"
#include "idempotency/client/transaction/once_in_transaction.h"

namespace v1 = idempotency::v1;
using idempotency::RunOutcome;

namespace {

std::string HashOfOrder() {
  return idempotency::RequestHashOfParts({"order", "book"});
}

idempotency::RunResult Order(idempotency::OnceInTransaction& once,
                             pqxx::work& work, const std::string& key) {
  return once.Run(
      work, {.scope = "orders", .key = key, .request_hash = HashOfOrder()},
      [&](const v1::Claimed&) {
        work.exec("INSERT INTO orders (key) VALUES (" + work.quote(key) + ")");
        return idempotency::MakeResponse(201, "ordered");
      });
}

// What went wrong, or nothing.
std::string OrderInTransactions(pqxx::connection& connection,
                                const std::string& key) {
  idempotency::OnceInTransaction once;
  {
    pqxx::work rolled_back(connection);
    const auto result = Order(once, rolled_back, key);
    if (result.outcome != RunOutcome::kExecuted) {
      return "first: " + result.status.ToString();
    }
  }
  for (const RunOutcome expected :
       {RunOutcome::kExecuted, RunOutcome::kReplayed}) {
    pqxx::work work(connection);
    const auto result = Order(once, work, key);
    if (result.outcome != expected) {
      return std::string(NameOf(result.outcome)) + ": " +
             result.status.ToString();
    }
    if (result.response.body() != "ordered") return "not as it was answered";
    work.commit();
  }
  pqxx::work work(connection);
  const pqxx::result orders =
      work.exec("SELECT count(*) FROM orders WHERE key = " + work.quote(key));
  return orders[0][0].as<int>() == 1 ? "" : "not ordered once";
}

std::string AskCoordinator(const std::string& target, const std::string& key) {
  const auto client = idempotency::Client::Connect(target);
  v1::ClaimRequest claim;
  claim.set_scope("orders");
  claim.set_key(key);
  claim.set_request_hash(HashOfOrder());
  const auto claimed = client->Claim(claim);
  if (!claimed.ok()) return claimed.status().ToString();
  return claimed->replay().response().body() == "ordered" ? "" : "not replayed";
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) return 2;
  pqxx::connection connection(argv[1]);
  {
    pqxx::work work(connection);
    work.exec("CREATE TABLE IF NOT EXISTS orders (key text NOT NULL)");
    work.commit();
  }
  std::string wrong = OrderInTransactions(connection, argv[3]);
  if (wrong.empty()) wrong = AskCoordinator(argv[2], argv[3]);
  std::printf("%s\n", wrong.empty() ? "ordered once" : wrong.c_str());
  return wrong.empty() ? 0 : 1;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}

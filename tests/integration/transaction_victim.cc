// An order that is placed once, in the transaction of its row, by a process
// that kills itself at one of its steps, or gets to the end and says which they
// were and what it answers.
//
//   transaction_victim DATABASE KEY STEP
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <pqxx/pqxx>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/transaction/once_in_transaction.h"
#include "tests/integration/fault_calls.h"

namespace idempotency {
namespace {

// Says where the process is, and kills it there if it is the last step.
class Steps {
 public:
  explicit Steps(std::string last) : last_(std::move(last)) {}

  void Take(const std::string& name) const {
    const std::string line = absl::StrCat("step: ", name, "\n");
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(3);
    if (name != last_) return;
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }

 private:
  const std::string last_;
};

int Run(const std::string& database, const std::string& key,
        const std::string& death) {
  const Steps steps(death);
  const v1::ClaimRequest claim = ClaimOf(key);
  OnceInTransaction once;
  pqxx::connection connection(database);
  steps.Take("connected");
  pqxx::work work(connection);
  work.exec("SELECT 1");
  steps.Take("transaction begun");
  const RunResult result = once.Run(
      work,
      {.scope = claim.scope(),
       .key = claim.key(),
       .request_hash = claim.request_hash()},
      [&](const v1::Claimed&) {
        steps.Take("claimed");
        const pqxx::result rows = work.exec(
            "INSERT INTO orders (key) VALUES ('" + key + "') RETURNING id");
        steps.Take("row written");
        return MakeResponse(201, "order " + rows[0][0].as<std::string>());
      });
  steps.Take("finalized");
  if (!result.has_response()) {
    std::puts(result.status.ToString().c_str());
    return 1;
  }
  work.commit();
  steps.Take("committed");
  std::printf(
      "answer: %s %s\n", std::string(NameOf(result.outcome)).c_str(),
      absl::WebSafeBase64Escape(result.response.SerializeAsString()).c_str());
  return 0;
}

}  // namespace
}  // namespace idempotency

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return idempotency::Run(argv[1], argv[2], argv[3]);
}

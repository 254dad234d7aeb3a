#include "server/store/postgres/statements.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "server/store/postgres/sweep_statements.h"

namespace idempotency::statements {
namespace {

constexpr int kInsertParameters = 15;

// `sql` with every parameter $n as $(n + by).
std::string Renumbered(std::string_view sql, int by) {
  std::string out;
  for (std::size_t i = 0; i < sql.size();) {
    out += sql[i];
    if (sql[i++] != '$') continue;
    int number = 0;
    for (; i < sql.size() && absl::ascii_isdigit(sql[i]); ++i) {
      number = number * 10 + (sql[i] - '0');
    }
    out += std::to_string(number + by);
  }
  return out;
}

}  // namespace

const Statement& InsertAndFinalize() {
  static const std::string sql =
      std::string("WITH inserted AS (")
          .append(kInsertNew.sql)
          .append("), finalized AS (")
          .append(Renumbered(kFinalizeOwned.sql, kInsertParameters))
          .append(
              ") SELECT scope, key, fencing_token, NULL::bytea FROM inserted "
              "UNION ALL SELECT scope, key, NULL, expires_at FROM finalized");
  static const Statement statement = {"insert_and_finalize", sql,
                                      Effect::kWrite, Plan::kKept};
  return statement;
}

const Statement& SweepUnlocked() {
  constexpr std::string_view kChosen = "LIMIT $1::bigint";
  static const std::string sql = [&] {
    std::string sql(kSweep.sql);
    return sql.insert(sql.find(kChosen) + kChosen.size(),
                      " FOR UPDATE SKIP LOCKED");
  }();
  static const Statement statement = {"sweep_unlocked", sql, Effect::kWrite,
                                      Plan::kInOrder};
  return statement;
}

}  // namespace idempotency::statements

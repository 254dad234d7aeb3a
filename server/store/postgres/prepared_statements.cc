#include "server/store/postgres/prepared_statements.h"

#include <algorithm>
#include <atomic>

#include "server/store/postgres/statements.h"

namespace idempotency {
namespace {

// The executions for which PostgreSQL makes a plan of their own, by
// plan_cache_mode "auto".
constexpr int kExecutionsMax = 5;

// An INSERT reads no rows that a plan could look for in a wrong way.
bool MayKeepItsPlan(const Statement& statement) {
  return statement.name == statements::kInsertNew.name;
}

std::uint64_t NextNumber() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

std::string NameOf(std::uint64_t number, std::string_view statement) {
  return std::string("idempotency_")
      .append(std::to_string(number))
      .append("_")
      .append(statement);
}

}  // namespace

PreparedStatements::Id PreparedStatements::IdOf(
    const pqxx::dbtransaction& transaction) {
  return {&transaction.conn(), transaction.conn().backendpid()};
}

std::shared_ptr<PreparedStatements::Known> PreparedStatements::Find(
    const Id& id) {
  MutexLock lock(mutex_);
  const auto found =
      std::find_if(connections_.begin(), connections_.end(),
                   [&](const KnownConnection& one) { return one.first == id; });
  if (found != connections_.end()) {
    connections_.splice(connections_.begin(), connections_, found);
  } else {
    auto fresh = std::make_shared<Known>();
    fresh->number = NextNumber();
    connections_.emplace_front(id, std::move(fresh));
    if (connections_.size() > kConnectionsMax) connections_.pop_back();
  }
  return connections_.front().second;
}

pqxx::result PreparedStatements::Run(pqxx::dbtransaction& transaction,
                                     const Statement& statement,
                                     const Parameters& parameters) {
  const std::shared_ptr<Known> known = Find(IdOf(transaction));
  const std::string name = NameOf(known->number, statement.name);
  auto executions = known->executions.find(statement.name);
  if (executions != known->executions.end() &&
      executions->second == kExecutionsMax && !MayKeepItsPlan(statement)) {
    transaction.conn().unprepare(name);
    known->executions.erase(executions);
    executions = known->executions.end();
  }
  if (executions == known->executions.end()) {
    pqxx_compat::Prepare(transaction.conn(), name, std::string(statement.sql));
    executions = known->executions.emplace(statement.name, 0).first;
  }
  if (executions->second < kExecutionsMax) ++executions->second;
  return pqxx_compat::RunPrepared(transaction, name, parameters);
}

void PreparedStatements::Forget(const pqxx::dbtransaction& transaction) {
  const Id id = IdOf(transaction);
  MutexLock lock(mutex_);
  connections_.remove_if(
      [&](const KnownConnection& one) { return one.first == id; });
}

}  // namespace idempotency

#include "server/store/postgres/prepared_statements.h"

#include <algorithm>
#include <atomic>

namespace idempotency {
namespace {

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
  // A plan of a time when the table was all but empty reads the whole table.
  // The caller's own plans are left alone.
  if (known->replan.Due(clock_.Now())) {
    for (const std::string_view name : known->prepared) {
      transaction.conn().unprepare(NameOf(known->number, name));
    }
    known->prepared.clear();
  }
  const std::string name = NameOf(known->number, statement.name);
  if (known->prepared.count(statement.name) == 0) {
    pqxx_compat::Prepare(transaction.conn(), name, std::string(statement.sql));
    known->prepared.insert(statement.name);
  }
  const SteadyTime began = clock_.Now();
  pqxx::result result = pqxx_compat::RunPrepared(transaction, name, parameters);
  known->replan.Took(clock_.Now() - began);
  return result;
}

void PreparedStatements::Forget(const pqxx::dbtransaction& transaction) {
  const Id id = IdOf(transaction);
  MutexLock lock(mutex_);
  connections_.remove_if(
      [&](const KnownConnection& one) { return one.first == id; });
}

}  // namespace idempotency

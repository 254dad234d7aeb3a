// Executes an operation once, in the same transaction as its rows: for services
// that keep what the operation changes in PostgreSQL. The claim and the
// response are rows of that database too, under the coordinator's migrations,
// and written by the server's own statements after the server's own decisions.
// No coordinator is asked; one may work on the same database, for the same
// keys.
//
//   idempotency::OnceInTransaction once;  // one for each database and schema
//
//   pqxx::work work(connection);
//   const idempotency::RunResult result = once.Run(
//       work,
//       {.scope = "orders",
//        .key = key_of_the_caller,
//        .request_hash = idempotency::RequestHash(
//            {"POST", "/orders", "application/json", body})},
//       [&](const idempotency::v1::Claimed&) {
//         work.exec("INSERT INTO orders ...");
//         return idempotency::MakeResponse(201, order);
//       });
//   if (!result.has_response()) return Problem(result);  // rolls back
//   work.commit();
//   return result.response;
//
// What it promises: the response is recorded if and only if the rows of `work`
// are committed. Until then there is no claim that outlives the transaction: a
// process that dies, or rolls back, leaves the record as it was before, absent
// or abandoned, and the next one executes. If it dies after the commit and
// before its answer, or its commit() throws in_doubt_error, the same call again
// is answered Replayed, or executes: whichever the rows say.
//
// What it does not: anything outside this database (a payment channel, a mail)
// is not undone by a rollback. Use RunOnce for that, which claims before and
// tells whoever comes next. It commits nothing: the caller does, and only then
// answers. A COMMIT that is not waited for on a standby (WARNING 01000, or
// asynchronous replication) is as unsafe as for any other row.
//
// While a transaction holds a key, another claim of it waits for its end, for
// as long as the session's lock_timeout allows (SQLSTATE 55P03 then, which is
// UNAVAILABLE and never InProgress); a claim through a coordinator is tried
// again until its deadline and then told UNAVAILABLE. So keep transactions
// short, set lock_timeout, and claim several keys in one order everywhere, lest
// they deadlock (40P01).
//
// Isolation. READ COMMITTED sees what the one that was waited for has written.
// Under REPEATABLE READ and SERIALIZABLE a record that was written after the
// snapshot ends the transaction with 40001, and InProgress is as old as the
// snapshot. For each of these run the whole operation again in a new
// transaction: everything UNAVAILABLE asks for that. Under SERIALIZABLE,
// transactions of different keys may end each other so too, above all those of
// several keys: PostgreSQL watches what was read by the page, and a small table
// has few.
//
// Time is the database's at each statement, not at BEGIN: a lease granted late
// in a long transaction is a whole one. Nobody can take over what is not
// committed, so that Finalize holds after the lease too. Retention counts from
// Finalize, not from the commit.
//
// The session: libpqxx 6.4 or newer, client_encoding UTF8, bytea_output hex
// (both are the usual ones); the tables are found through its search_path. No
// setting of it is changed. Up to five statements are prepared in it, under
// names that begin with "idempotency_"; where DISCARD ALL took them away, one
// transaction is told UNAVAILABLE, and the next prepares them again: whoever
// sends it each time a connection goes back to a pool says `pooled`. The role
// needs the grants of migrations/README.md. Somebody has to delete expired
// records: a coordinator on this database, or `idempotency-server
// --sweep_only`.
#ifndef IDEMPOTENCY_CLIENT_TRANSACTION_ONCE_IN_TRANSACTION_H_
#define IDEMPOTENCY_CLIENT_TRANSACTION_ONCE_IN_TRANSACTION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/operation.h"
#include "client/request_hash.h"  // For filling an Operation.
#include "idempotency/v1/idempotency.pb.h"

namespace pqxx {
class dbtransaction;  // pqxx::work, pqxx::subtransaction and so on.
}

namespace idempotency {

struct OnceInTransactionOptions {
  // As the server's --downstream_namespace: empty for the database's own. All
  // who share the records must have the same.
  std::string downstream_namespace = {};
  // The connections lead to a pooler in transaction mode (PgBouncer), or what
  // is prepared in them is often discarded: nothing is prepared, which costs
  // the database twice as much.
  bool pooled = false;
  // Longest body that is recorded, at most 3 MiB; a longer one is left out.
  std::size_t body_bytes_max = std::size_t{1024} * 1024;
};

// Thread-safe, each transaction in one thread at a time.
//
// Reads the database's policies within the transactions, in six statements, and
// keeps them for two seconds, for all transactions: so each must find the same
// tables. One that finds those of another database or schema may get policies
// and downstream keys of the first ones, or, if it is the one to read them, is
// told UNAVAILABLE with a message that says so. A transaction that changed
// policies itself shows them to the others for as long, also if it is rolled
// back.
class OnceInTransaction {
 public:
  explicit OnceInTransaction(const OnceInTransactionOptions& options = {});
  ~OnceInTransaction();
  OnceInTransaction(const OnceInTransaction&) = delete;
  OnceInTransaction& operator=(const OnceInTransaction&) = delete;

  // The response to record and to answer with; or why nothing is to be kept. It
  // must not end the transaction.
  using Function =
      std::function<absl::StatusOr<v1::Response>(const v1::Claimed&)>;

  // Claims, calls `function` unless somebody has executed, and records its
  // response. Blocks. Of `operation`, the members of the Claim and `lease`
  // count.
  //
  //   kExecuted         commit, then answer
  //   kReplayed         answer; nothing was written, and nothing need be
  //                     committed, unless this very transaction executed it
  //   kInProgress, kMismatch, kInDoubt
  //                     nothing was written, and the transaction can be used
  //                     further. InDoubt is resolved by RunOnce, or by Claim()
  //   kInvalid          nothing was sent, or see kUnavailable
  //   kUnavailable      aborted: run all of it again in a new transaction if
  //                     the status is UNAVAILABLE
  //   kNothingHappened  aborted after `function` ran: it said so, or its
  //                     response cannot be recorded. One of 500 and above
  //                     is not, unless the policy records it; `response` has it
  //
  // Aborted means rolled back: commit() would throw. With a subtransaction it
  // means rolled back to its beginning. What `function` throws comes out here,
  // after an abort. Claimed::abandoned says that somebody else, who claimed
  // otherwise than in a transaction, may have acted before.
  RunResult Run(pqxx::dbtransaction& transaction, const Operation& operation,
                const Function& function);

  // Run()'s two halves, as the calls of the contract, with their outcomes and
  // errors (status.h); `wait` is not looked at. A claim that was granted by a
  // coordinator may be finalized here, together with the rows, and the other
  // way round after a commit. UNAVAILABLE, INTERNAL and DATA_LOSS abort the
  // transaction; after any other error, it can be used further. Evidence of a
  // refused Finalize stays if the transaction is committed.
  absl::StatusOr<v1::ClaimResponse> Claim(pqxx::dbtransaction& transaction,
                                          const v1::ClaimRequest& request);
  absl::StatusOr<v1::FinalizeResponse> Finalize(
      pqxx::dbtransaction& transaction, const v1::FinalizeRequest& request);

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_TRANSACTION_ONCE_IN_TRANSACTION_H_

#include "server/store/postgres/record_table.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

#include "server/core/limits.h"
#include "server/core/transitions.h"
#include "server/store/postgres/connection.h"
#include "server/store/postgres/fleet_rules.h"
#include "server/store/postgres/pg_arrays.h"
#include "server/store/postgres/pg_row.h"
#include "server/store/postgres/record_row.h"
#include "server/store/postgres/statements.h"

namespace idempotency {
namespace {

const RecordId& IdOf(const RecordId& id) { return id; }
const RecordId& IdOf(const Replacement& replacement) { return *replacement.id; }
template <typename Item>
const RecordId& IdOf(const Item& item) {
  return item.id;
}

// A write has been committed by then.
absl::Status UnexpectedAnswer(const Statement& statement) {
  const std::string what =
      std::string(statement.name)
          .append(": the database answered something else than asked");
  return statement.effect == Effect::kWrite ? absl::UnknownError(what)
                                            : absl::InternalError(what);
}

// Finds the items that rows belong to. Rows come mostly in the batch's order,
// so that the next item is nearly always the one.
template <typename Item>
class ItemFinder {
 public:
  explicit ItemFinder(Batch<Item> batch) : batch_(batch) {}

  std::optional<std::size_t> Find(std::string_view scope,
                                  std::string_view key) {
    if (next_ < batch_.size() && Compare(next_, scope, key) == 0) {
      return next_++;
    }
    std::size_t low = 0;
    std::size_t high = batch_.size();
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (Compare(middle, scope, key) < 0) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == batch_.size() || Compare(low, scope, key) != 0) {
      return std::nullopt;
    }
    next_ = low + 1;
    return low;
  }

 private:
  int Compare(std::size_t item, std::string_view scope,
              std::string_view key) const {
    const RecordId& id = IdOf(*batch_[item]);
    const int by_scope = id.scope.compare(scope);
    return by_scope != 0 ? by_scope : id.key.compare(key);
  }

  const Batch<Item> batch_;
  std::size_t next_ = 0;
};

// Runs a statement whose rows begin with scope and key, and gives each to
// `use` with the number of its item. `use` returns false for a row that it
// can't read.
template <typename Item, typename Use>
absl::Status RunForItems(StatementRunner& runner, const Statement& statement,
                         const Parameters& parameters, Batch<Item> batch,
                         Use use) {
  const absl::StatusOr<pqxx::result> result = runner.Run(statement, parameters);
  if (!result.ok()) return result.status();
  ItemFinder<Item> finder(batch);
  for (const pqxx::row& row : *result) {
    PgRow fields(row);
    const std::optional<std::size_t> item =
        finder.Find(fields.Text(0), fields.Text(1));
    if (!item.has_value() || !use(*item, fields) || !fields.ok()) {
      return UnexpectedAnswer(statement);
    }
  }
  return absl::OkStatus();
}

// The first fencing token is the time of the grant.
absl::Time GrantedAt(PgRow& row) { return absl::FromUnixMicros(row.Int8(2)); }

Parameters InsertParameters(Batch<ClaimCommand> claims) {
  BatchWriter out;
  for (const ClaimCommand* claim : claims) {
    const Policy& policy = *claim->policy;
    out.Text(claim->id.scope);
    out.Text(claim->id.key);
    out.Bytes(claim->request_hash);
    out.Id(claim->claim_token);
    out.Text(claim->owner);
    out.OptionalBytes(claim->checkpoint);
    out.Int8(claim->checkpoint_number);
    out.Text(policy.name);
    out.Micros(policy.lease);
    out.Micros(policy.max_lease);
    out.OptionalMicros(policy.retention);
    out.OptionalMicros(policy.retention_after_finalize);
    out.Int2(StoredEnum(policy.on_abandoned));
    out.Int2(StoredEnum(policy.on_server_error));
    out.Micros(FirstLease(*claim));
    out.EndRow();
  }
  return std::move(out).Finish();
}

Parameters FinalizeParameters(Batch<FinalizeCommand> finalizes) {
  BatchWriter out;
  for (const FinalizeCommand* finalize : finalizes) {
    const Response& response = finalize->response;
    out.Text(finalize->id.scope);
    out.Text(finalize->id.key);
    out.Id(finalize->claim_token);
    out.Int4(response.status_code);
    out.Bytes(response.headers);
    out.Bytes(response.body);
    out.Bool(response.body_omitted);
    out.Bool(response.headers_omitted);
    out.Bytes(finalize->response_digest);
    out.EndRow();
  }
  return std::move(out).Finish();
}

Parameters NameParameters(Batch<RecordId> ids) {
  BatchWriter out;
  for (const RecordId* id : ids) {
    out.Text(id->scope);
    out.Text(id->key);
    out.EndRow();
  }
  return std::move(out).Finish();
}

}  // namespace

PgRecordTable::PgRecordTable(ConnectionOptions options, const Clock& clock)
    : runner_(std::make_unique<Connection>(options, clock)),
      citus_(options.citus) {}

PgRecordTable::PgRecordTable(std::unique_ptr<StatementRunner> runner)
    : runner_(std::move(runner)), citus_(false) {}

absl::StatusOr<Times> PgRecordTable::InsertNew(Batch<ClaimCommand> claims) {
  Times granted(claims.size());
  if (claims.empty()) return granted;
  const absl::Status status =
      RunForItems(*runner_, statements::kInsertNew, InsertParameters(claims),
                  claims, [&](std::size_t item, PgRow& row) {
                    granted[item] = GrantedAt(row);
                    return true;
                  });
  if (!status.ok()) return status;
  return granted;
}

absl::StatusOr<Times> PgRecordTable::FinalizeOwned(
    Batch<FinalizeCommand> finalizes) {
  Times expiries(finalizes.size());
  if (finalizes.empty()) return expiries;
  const absl::Status status = RunForItems(
      *runner_, statements::kFinalizeOwned, FinalizeParameters(finalizes),
      finalizes, [&](std::size_t item, PgRow& row) {
        expiries[item] = row.Time(2);
        return true;
      });
  if (!status.ok()) return status;
  return expiries;
}

InsertedAndFinalized PgRecordTable::InsertAndFinalize(
    Batch<ClaimCommand> claims, Batch<FinalizeCommand> finalizes) {
  if (claims.empty() || finalizes.empty() || citus_) {
    return RecordTable::InsertAndFinalize(claims, finalizes);
  }
  const Statement& statement = statements::InsertAndFinalize();
  Parameters parameters = InsertParameters(claims);
  Parameters of_finalizes = FinalizeParameters(finalizes);
  std::move(of_finalizes.begin(), of_finalizes.end(),
            std::back_inserter(parameters));
  const absl::StatusOr<pqxx::result> result =
      runner_->Run(statement, parameters);
  if (!result.ok()) return {result.status(), result.status()};
  Times granted(claims.size());
  Times expiries(finalizes.size());
  ItemFinder<ClaimCommand> claim_finder(claims);
  ItemFinder<FinalizeCommand> finalize_finder(finalizes);
  for (const pqxx::row& row : *result) {
    PgRow fields(row);
    const bool inserted = !fields.IsNull(2);
    const std::optional<std::size_t> item =
        inserted ? claim_finder.Find(fields.Text(0), fields.Text(1))
                 : finalize_finder.Find(fields.Text(0), fields.Text(1));
    if (item.has_value() && inserted) granted[*item] = GrantedAt(fields);
    if (item.has_value() && !inserted) expiries[*item] = fields.Time(3);
    if (!item.has_value() || !fields.ok()) {
      return {UnexpectedAnswer(statement), UnexpectedAnswer(statement)};
    }
  }
  return {std::move(granted), std::move(expiries)};
}

absl::StatusOr<Snapshot> PgRecordTable::Read(Batch<RecordId> ids,
                                             ReadBodies bodies) {
  Snapshot snapshot;
  snapshot.rows.resize(ids.size());
  for (ReadRow& row : snapshot.rows) row.read = true;
  const bool with_bodies = bodies == ReadBodies::kYes;
  Parameters parameters = NameParameters(ids);
  if (ids.empty()) return snapshot;
  parameters.push_back(BinaryBool(with_bodies));
  parameters.push_back(BinaryInt8(limits::kInlineBodyBytesMax));
  const absl::StatusOr<pqxx::result> result =
      runner_->Run(statements::kReadRecords, parameters);
  if (!result.ok()) return result.status();
  if (result->empty()) {
    const absl::StatusOr<pqxx::result> clock =
        runner_->Run(statements::kReadClock, {});
    if (!clock.ok()) return clock.status();
    PgRow row((*clock)[0]);
    snapshot.now = row.Time(0);
    if (!row.ok()) return UnexpectedAnswer(statements::kReadClock);
    return snapshot;
  }
  std::vector<LongBody> long_bodies;
  ItemFinder<RecordId> finder(ids);
  for (const pqxx::row& row : *result) {
    const RecordId id = ReadStoredId(row);
    const std::optional<std::size_t> item = finder.Find(id.scope, id.key);
    if (!item.has_value()) return UnexpectedAnswer(statements::kReadRecords);
    absl::StatusOr<StoredRecord> stored = ReadStoredRecord(row, with_bodies);
    ReadRow& answer = snapshot.rows[*item];
    if (!stored.ok()) {
      answer = {.read = false, .status = stored.status()};
      continue;
    }
    snapshot.now = stored->now;
    answer.record = std::move(stored->record);
    if (stored->left_out_body_bytes > 0) {
      long_bodies.push_back({*item, stored->left_out_body_bytes});
    }
  }
  const absl::Status status = ReadLongBodies(ids, long_bodies, snapshot);
  if (!status.ok()) return status;
  return snapshot;
}

// One group at most; what does not fit is to be read again.
absl::Status PgRecordTable::ReadLongBodies(
    Batch<RecordId> ids, const std::vector<LongBody>& long_bodies,
    Snapshot& snapshot) {
  if (long_bodies.empty()) return absl::OkStatus();
  BatchWriter out;
  std::vector<const RecordId*> group;
  std::vector<std::size_t> items;
  std::size_t room = limits::kBodyGroupBytesMax;
  for (const LongBody& body : long_bodies) {
    ReadRow& row = snapshot.rows[body.item];
    row.read = false;  // until its body is here
    if (body.bytes > room) continue;
    room -= body.bytes;
    group.push_back(ids[body.item]);
    items.push_back(body.item);
    out.Text(ids[body.item]->scope);
    out.Text(ids[body.item]->key);
    out.Int8(row.record->version);
    out.EndRow();
  }
  const absl::Status status = RunForItems(
      *runner_, statements::kReadBodies, std::move(out).Finish(),
      Batch<RecordId>(group), [&](std::size_t member, PgRow& fields) {
        ReadRow& row = snapshot.rows[items[member]];
        row.record->response.body = fields.Bytes(2);
        row.read = true;
        return true;
      });
  for (ReadRow& row : snapshot.rows) {
    if (!row.read) row.record.reset();
  }
  return status;
}

absl::StatusOr<std::vector<bool>> PgRecordTable::Replace(
    Batch<Replacement> replacements) {
  std::vector<bool> replaced(replacements.size());
  if (replacements.empty()) return replaced;
  const absl::Status status = RunForItems(
      *runner_, statements::kReplace, ReplaceParameters(replacements),
      replacements, [&](std::size_t item, PgRow&) {
        replaced[item] = true;
        return true;
      });
  if (!status.ok()) return status;
  return replaced;
}

absl::StatusOr<std::vector<bool>> PgRecordTable::KeepConflicts(
    Batch<Conflict> conflicts) {
  std::vector<bool> kept(conflicts.size());
  if (conflicts.empty()) return kept;
  BatchWriter out;
  for (const Conflict* conflict : conflicts) {
    out.Text(conflict->id.scope);
    out.Text(conflict->id.key);
    out.Id(conflict->claim_token);
    out.Bytes(conflict->response_digest);
    out.Int4(conflict->status_code);
    out.EndRow();
  }
  Parameters parameters = std::move(out).Finish();
  parameters.push_back(BinaryInt8(limits::kConflictsPerRecordMax));
  const absl::Status status =
      RunForItems(*runner_, statements::kKeepConflicts, parameters, conflicts,
                  [&](std::size_t item, PgRow&) {
                    kept[item] = true;
                    return true;
                  });
  if (!status.ok()) return status;
  return kept;
}

absl::StatusOr<std::vector<bool>> PgRecordTable::FindChanged(
    Batch<Watched> watched) {
  std::vector<bool> changed(watched.size(), true);
  if (watched.empty()) return changed;
  BatchWriter out;
  for (const Watched* one : watched) {
    out.Text(one->id.scope);
    out.Text(one->id.key);
    out.Int8(one->version);
    out.EndRow();
  }
  const absl::Status status =
      RunForItems(*runner_, statements::kFindUnchanged, std::move(out).Finish(),
                  watched, [&](std::size_t item, PgRow&) {
                    changed[item] = false;
                    return true;
                  });
  if (!status.ok()) return status;
  return changed;
}

absl::StatusOr<std::vector<int>> PgRecordTable::CountConflicts(
    Batch<RecordId> ids) {
  std::vector<int> counts(ids.size());
  if (ids.empty()) return counts;
  const absl::Status status =
      RunForItems(*runner_, statements::kCountConflicts, NameParameters(ids),
                  ids, [&](std::size_t item, PgRow& row) {
                    counts[item] = row.Int4(2);
                    return true;
                  });
  if (!status.ok()) return status;
  return counts;
}

absl::StatusOr<FleetRules> PgRecordTable::ReadRules() {
  return ReadFleetRules(*runner_);
}

}  // namespace idempotency

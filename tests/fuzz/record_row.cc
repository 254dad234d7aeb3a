// Input: which columns of a stored record hold something else than they should
// (FuzzedDataProvider). A real PostgreSQL gives the row; one that is read is
// stored, and read again.
// libFuzzer: -len_control=0 -max_len=500
#include "server/store/postgres/record_row.h"

#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "server/core/errors.h"
#include "server/store/postgres/pg_row.h"
#include "server/store/postgres/record_table.h"
#include "server/store/postgres/statements.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/postgres.h"

namespace idempotency {
namespace {

using fuzz::Require;

constexpr char kTime[] = "\\x0002a1fb2ac96001";
constexpr char kLater[] = "\\x0002a1fb2ac96f01";

// A final record that has taken over, in the columns of kReadRecords.
constexpr std::array<const char*, kReadColumns> kUsual = {
    kTime,
    "orders",
    "k",
    "f",
    "\\x6868686868686868",
    "0f8fad5b-d9cb-469f-a165-70867728950e",
    "1700000000000009",
    "3",
    "1700000000000011",
    "default",
    "30000000",
    "3600000000",
    "86400000000",
    nullptr,
    "0",
    "0",
    "f",
    "2",
    kTime,
    kTime,
    "30000000",
    kLater,
    kLater,
    "pod-1",
    "\\x00ff",
    "7",
    "0",
    nullptr,
    nullptr,
    "2",
    "1700000000000001",
    kTime,
    kTime,
    "2",
    "503",
    "pod-2",
    nullptr,
    kTime,
    "201",
    "\\xfefe",
    "f",
    "f",
    "\\x0068",
    "\\x7061696400",
    "5"};

constexpr Statement kAsRow = {"as_row", R"sql(
SELECT c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10],
  c[11], c[12], c[13], c[14], c[15], c[16], c[17], c[18], c[19], c[20],
  c[21], c[22], c[23], c[24], c[25], c[26], c[27], c[28], c[29], c[30],
  c[31], c[32], c[33], c[34], c[35], c[36], c[37], c[38], c[39], c[40],
  c[41], c[42], c[43], c[44], c[45]
FROM (SELECT $1::text[] AS c) AS columns
)sql",
                              Effect::kRead, Plan::kFresh};

// Text that PostgreSQL takes, often nearly what a column holds.
std::string AnyColumn(FuzzedDataProvider& in, const char* usual) {
  constexpr const char* kShort[] = {"", "f", "t", "-1", "0", "1", "2", "3"};
  std::string text;
  switch (in.ConsumeIntegralInRange(0, 4)) {
    case 0:
      text = in.ConsumeRandomLengthString(40);
      break;
    case 1:
      text = in.PickValueInArray(kShort);
      break;
    case 2:
      text = std::to_string(in.ConsumeIntegral<std::int64_t>());
      break;
    case 3:
      text = "\\x";
      for (const char c : in.ConsumeRandomLengthString(40)) {
        text += "0123456789abcdef"[c & 0xf];
      }
      break;
    default:
      text = usual == nullptr ? "" : usual;
      if (!text.empty()) {
        text[in.ConsumeIntegralInRange<std::size_t>(0, text.size() - 1)] =
            in.ConsumeIntegral<char>();
      }
      break;
  }
  for (char& c : text) {
    c = static_cast<char>(c & 0x7f);
    if (c == '\0') c = '0';
  }
  return text;
}

Parameters AnyRow(FuzzedDataProvider& in) {
  std::array<std::optional<std::string>, kReadColumns> columns;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (kUsual[i] != nullptr) columns[i] = kUsual[i];
  }
  // Few at a time: one that is not understood makes the rest unseen.
  constexpr int kChanges[] = {0, 1, 1, 1, 1, 2, 2, 2, 3, 8};
  for (int left = in.PickValueInArray(kChanges); left > 0; --left) {
    const auto i = in.ConsumeIntegralInRange<std::size_t>(0, kReadColumns - 1);
    if (in.ConsumeIntegralInRange(0, 4) == 0) {
      columns[i].reset();
    } else {
      columns[i] = AnyColumn(in, kUsual[i]);
    }
  }
  ArrayWriter out(ArrayWriter::Element::kText);
  for (const std::optional<std::string>& column : columns) {
    column.has_value() ? out.AddBytes(*column) : out.AddNull();
  }
  return {std::move(out).Finish()};
}

// Those of a row that PostgreSQL itself can hold.
bool IsStorable(const Record& record) {
  const auto storable = [](absl::Time time) {
    return time == absl::InfiniteFuture() || time == absl::InfinitePast() ||
           (time > absl::FromUnixSeconds(-210'000'000'000) &&
            time < absl::FromUnixSeconds(9'000'000'000'000));
  };
  const bool abandoned_is_storable = !record.abandoned.has_value() ||
                                     (storable(record.abandoned->claimed_at) &&
                                      storable(record.abandoned->abandoned_at));
  return storable(record.created_at) && storable(record.claimed_at) &&
         storable(record.lease_expires_at) && storable(record.expires_at) &&
         storable(record.gave_up_at) && storable(record.finalized_at) &&
         abandoned_is_storable;
}

class Table {
 public:
  // Takes the place of whatever is there; the name is its own.
  Record StoreAndRead(const Record& record) {
    const RecordId* const ids[] = {&id_};
    if (!before_.has_value()) before_ = Insert();
    const Replacement replacement{
        .id = &id_, .before = &*before_, .after = &record};
    const Replacement* const replacements[] = {&replacement};
    const auto replaced = table_.Replace(replacements);
    if (!replaced.ok()) {
      std::fprintf(stderr, "%s\n", replaced.status().ToString().c_str());
    }
    Require(replaced.ok() && replaced->front(), "what was read can be stored");
    absl::StatusOr<Snapshot> snapshot = table_.Read(ids, ReadBodies::kYes);
    Require(snapshot.ok() && snapshot->rows.front().read &&
                snapshot->rows.front().record.has_value(),
            "what was stored can be read");
    Record read = *std::move(snapshot->rows.front().record);
    // A final record's response would stay as it is.
    before_ = read;
    before_->state = RecordState::kUnfinished;
    return read;
  }

 private:
  Record Insert() {
    ClaimCommand claim;
    claim.id = id_;
    claim.request_hash = std::string(32, 'h');
    claim.claim_token.bytes.fill(1);
    claim.policy = Policy{.name = "default",
                          .lease = absl::Seconds(30),
                          .max_lease = absl::Hours(1),
                          .retention = absl::Hours(24)};
    const ClaimCommand* const claims[] = {&claim};
    Require(table_.InsertNew(claims).ok(), "a record can be inserted");
    const RecordId* const ids[] = {&id_};
    absl::StatusOr<Snapshot> snapshot = table_.Read(ids, ReadBodies::kYes);
    Require(snapshot.ok(), "it can be read");
    return *std::move(snapshot->rows.front().record);
  }

  const RecordId id_{"fuzz", "k"};
  PgRecordTable table_{fuzz::MigratedDatabase(), fuzz::RealClock()};
  std::optional<Record> before_;
};

void CheckRead(const Record& record) {
  Require(record.attempt >= 1 && record.fencing_token >= 1 &&
              record.version >= 1 && record.freed_count >= 0,
          "numbers that count are not negative");
  Require(!record.claim_token.is_nil() && !record.request_hash.empty(),
          "a record has a claim token and a request hash");
  Require(record.state != RecordState::kUnfinished ||
              (record.lease > absl::ZeroDuration() &&
               record.lease_expires_at > record.claimed_at),
          "an unfinished record has a lease");
}

void FuzzRow(FuzzedDataProvider& in) {
  const bool with_bodies = in.ConsumeIntegralInRange(0, 3) != 0;
  const absl::StatusOr<pqxx::result> result =
      fuzz::TheConnection().Run(kAsRow, AnyRow(in));
  Require(result.ok(), "PostgreSQL takes the columns");
  const absl::StatusOr<StoredRecord> stored =
      ReadStoredRecord((*result)[0], with_bodies);
  if (!stored.ok()) {
    return Require(ReasonOf(stored.status()) == Reason::kRecordCorrupt,
                   "a row that is not read is RECORD_CORRUPT");
  }
  CheckRead(stored->record);
  if (!with_bodies || !IsStorable(stored->record)) return;
  static Table table;
  Require(table.StoreAndRead(stored->record) == stored->record,
          "a record that is stored is read as it was");
}

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  FuzzedDataProvider in(data, size);
  idempotency::FuzzRow(in);
  return 0;
}

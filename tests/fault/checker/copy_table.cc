#include "tests/fault/checker/copy_table.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "tests/fault/checker/hex.h"

namespace idempotency::fault {
namespace {

bool ReadInt(std::string_view text, std::int64_t& value) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<std::string_view> SplitAtTabs(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const std::size_t tab = line.find('\t');
    fields.push_back(line.substr(0, tab));
    if (tab == std::string_view::npos) return fields;
    line.remove_prefix(tab + 1);
  }
}

// For each of `columns`, its place in the header.
absl::StatusOr<std::vector<std::size_t>> PlacesOf(
    std::span<const std::string_view> columns, std::string_view header) {
  const std::vector<std::string_view> names = SplitAtTabs(header);
  std::vector<std::size_t> places;
  for (const std::string_view column : columns) {
    const auto place = std::find(names.begin(), names.end(), column);
    if (place == names.end()) {
      return absl::InvalidArgumentError("no column '" + std::string(column) +
                                        "' in the header");
    }
    places.push_back(static_cast<std::size_t>(place - names.begin()));
  }
  for (const std::string_view name : names) {
    if (std::count(columns.begin(), columns.end(), name) == 0) {
      return absl::InvalidArgumentError("unknown column '" + std::string(name) +
                                        "'");
    }
  }
  if (names.size() != columns.size()) {
    return absl::InvalidArgumentError("a column is there twice");
  }
  return places;
}

// 2026-11-30 20:04:36.123456+00
std::optional<absl::Time> ReadTime(std::string_view text) {
  if (text == "infinity") return absl::InfiniteFuture();
  constexpr std::string_view kShape = "dddd-dd-dd dd:dd:dd";
  if (!text.ends_with("+00")) return std::nullopt;
  text.remove_suffix(3);
  if (text.size() < kShape.size()) return std::nullopt;
  std::int64_t parts[6] = {};
  std::size_t part = 0;
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    if (kShape[i] == 'd') {
      if (text[i] < '0' || text[i] > '9') return std::nullopt;
      parts[part] = parts[part] * 10 + (text[i] - '0');
    } else if (text[i] == kShape[i]) {
      ++part;
    } else {
      return std::nullopt;
    }
  }
  const absl::Time whole =
      absl::FromCivil(absl::CivilSecond(parts[0], parts[1], parts[2], parts[3],
                                        parts[4], parts[5]),
                      absl::UTCTimeZone());
  std::string fraction(text.substr(kShape.size()));
  if (fraction.empty()) return whole;
  if (fraction.front() != '.' || fraction.size() > 7) return std::nullopt;
  fraction.resize(7, '0');
  std::int64_t micros = 0;
  if (!ReadInt(std::string_view(fraction).substr(1), micros) || micros < 0) {
    return std::nullopt;
  }
  return whole + absl::Microseconds(micros);
}

}  // namespace

void CopyRow::Refuse(std::size_t column) {
  if (!problem_.empty()) return;
  problem_ = "column '" + std::string(columns_[column]) +
             "' cannot be understood: '" + std::string(fields_[column]) + "'";
}

std::string CopyRow::Text(std::size_t column) {
  const std::string_view raw = fields_[column];
  if (IsNull(column)) Refuse(column);
  if (raw.find('\\') == std::string_view::npos) return std::string(raw);
  std::string out;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\') {
      out += raw[i];
      continue;
    }
    if (++i == raw.size()) {
      Refuse(column);
      break;
    }
    constexpr std::string_view kNames = "bfnrtv\\";
    constexpr std::string_view kMeant = "\b\f\n\r\t\v\\";
    const std::size_t known = kNames.find(raw[i]);
    if (known == std::string_view::npos) {
      Refuse(column);
      break;
    }
    out += kMeant[known];
  }
  return out;
}

// \\x6162
std::string CopyRow::Bytes(std::size_t column) {
  constexpr std::string_view kPrefix = "\\\\x";
  const std::string_view raw = fields_[column];
  std::optional<std::string> bytes;
  if (raw.starts_with(kPrefix)) bytes = FromHex(raw.substr(kPrefix.size()));
  if (!bytes.has_value()) Refuse(column);
  return std::move(bytes).value_or("");
}

std::int64_t CopyRow::Int(std::size_t column) {
  std::int64_t value = 0;
  if (!ReadInt(fields_[column], value)) Refuse(column);
  return value;
}

bool CopyRow::Bool(std::size_t column) {
  const std::string_view raw = fields_[column];
  if (raw != "t" && raw != "f") Refuse(column);
  return raw == "t";
}

Uuid CopyRow::Id(std::size_t column) {
  const std::optional<Uuid> id = ParseUuid(fields_[column]);
  if (!id.has_value()) Refuse(column);
  return id.value_or(Uuid{});
}

absl::Time CopyRow::Time(std::size_t column) {
  const std::optional<absl::Time> time = ReadTime(fields_[column]);
  if (!time.has_value()) Refuse(column);
  return time.value_or(absl::UnixEpoch());
}

absl::Status ReadCopy(const std::string& path,
                      std::span<const std::string_view> columns,
                      absl::FunctionRef<void(CopyRow&)> use) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, "cannot open " + path);
  const auto refuse = [&](std::int64_t line, std::string_view problem) {
    return absl::InvalidArgumentError(path + ":" + std::to_string(line) + ": " +
                                      std::string(problem));
  };
  std::string line;
  if (!std::getline(file, line)) return refuse(1, "no header line");
  const absl::StatusOr<std::vector<std::size_t>> places =
      PlacesOf(columns, line);
  if (!places.ok()) return refuse(1, std::string(places.status().message()));
  std::vector<std::string_view> fields(columns.size());
  for (std::int64_t number = 2; std::getline(file, line); ++number) {
    if (file.eof()) return refuse(number, "the line is cut off");
    const std::vector<std::string_view> raw = SplitAtTabs(line);
    if (raw.size() != columns.size()) {
      return refuse(number, "another number of fields than in the header");
    }
    for (std::size_t i = 0; i < fields.size(); ++i) {
      fields[i] = raw[(*places)[i]];
    }
    CopyRow row(columns, fields);
    use(row);
    if (!row.ok()) return refuse(number, row.problem());
  }
  return file.bad() ? absl::DataLossError("cannot read " + path)
                    : absl::OkStatus();
}

}  // namespace idempotency::fault

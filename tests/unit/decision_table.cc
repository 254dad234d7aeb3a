#include "tests/unit/decision_table.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace idempotency {
namespace {

int PositionOf(const std::string& name, std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  const auto position = static_cast<int>(found - names.begin());
  if (found == names.end()) names.push_back(name);
  return position;
}

}  // namespace

DecisionTable::DecisionTable(std::string title,
                             std::vector<std::string> columns)
    : title_(std::move(title)),
      columns_(std::move(columns)),
      names_(columns_.size()) {}

bool DecisionTable::Add(const std::vector<std::string>& values,
                        const std::string& outcome) {
  if (values.size() != columns_.size()) std::abort();
  std::vector<int> positions;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    positions.push_back(PositionOf(values[i], names_[i]));
  }
  const auto [at, inserted] = cases_.emplace(std::move(positions), outcome);
  return inserted || at->second == outcome;
}

std::vector<DecisionTable::Cells> DecisionTable::Lines(
    std::vector<Case> cases, std::size_t column) const {
  if (column == columns_.size()) return {{cases.front().outcome}};
  std::map<int, std::vector<Case>> by_value;
  for (Case& one : cases) {
    by_value[one.values[column]].push_back(std::move(one));
  }
  // Values that lead to the same lines share them.
  std::vector<std::pair<std::string, std::vector<Cells>>> groups;
  for (auto& [value, its_cases] : by_value) {
    std::vector<Cells> lines = Lines(std::move(its_cases), column + 1);
    const std::string& name = names_[column][static_cast<std::size_t>(value)];
    const auto same =
        std::find_if(groups.begin(), groups.end(),
                     [&](const auto& group) { return group.second == lines; });
    if (same == groups.end()) {
      groups.emplace_back(name, std::move(lines));
    } else {
      same->first += "|" + name;
    }
  }
  std::vector<Cells> all;
  for (auto& [name, lines] : groups) {
    for (Cells& line : lines) {
      line.insert(line.begin(), groups.size() == 1 ? "-" : name);
      all.push_back(std::move(line));
    }
  }
  return all;
}

std::string DecisionTable::Print() const {
  std::vector<Case> cases;
  for (const auto& [values, outcome] : cases_) {
    cases.push_back({values, outcome});
  }
  std::vector<Cells> lines = Lines(std::move(cases), 0);
  Cells header = columns_;
  header.push_back("outcome");
  lines.insert(lines.begin(), std::move(header));
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const Cells& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], line[i].size());
    }
  }
  std::string text = "# " + title_ + "\n";
  for (const Cells& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += line[i] + std::string(widths[i] - line[i].size() + 2, ' ');
    }
    text += line.back() + "\n";
  }
  return text + "\n";
}

}  // namespace idempotency

#ifndef IDEMPOTENCY_TESTS_UNIT_DECISION_TABLE_H_
#define IDEMPOTENCY_TESTS_UNIT_DECISION_TABLE_H_

#include <map>
#include <string>
#include <vector>

namespace idempotency {

// A table from the values of its columns to an outcome, printed with one line
// for all cases that come out alike: "-" stands for every value that occurs
// there, "a|b" for either.
class DecisionTable {
 public:
  DecisionTable(std::string title, std::vector<std::string> columns);

  // False when the same values had another outcome before: a column that
  // matters is missing.
  [[nodiscard]] bool Add(const std::vector<std::string>& values,
                         const std::string& outcome);

  std::string Print() const;

 private:
  struct Case {
    std::vector<int> values;  // positions in names_
    std::string outcome;
  };
  using Cells = std::vector<std::string>;  // from a column on, and the outcome

  std::vector<Cells> Lines(std::vector<Case> cases, std::size_t column) const;

  std::string title_;
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> names_;  // by column, as they came
  std::map<std::vector<int>, std::string> cases_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_DECISION_TABLE_H_

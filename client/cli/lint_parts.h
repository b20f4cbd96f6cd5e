// A placement file taken apart as written, for rules that go on after the first broken one.
#ifndef EPLB_CLIENT_CLI_LINT_PARTS_H_
#define EPLB_CLIENT_CLI_LINT_PARTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/wire/json_value.h"

namespace eplb::cli {

// Collects what one rule finds. Only the first 100 are told; a last sentence counts the rest.
class Rule {
 public:
  explicit Rule(std::vector<std::string>& out) : out_(out) {}
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;
  ~Rule();

  template <class... Parts>
  void Add(const Parts&... parts) {
    if (++count_ <= kMaxFindings) out_.push_back(absl::StrCat(parts...));
  }
  bool kept() const { return count_ == 0; }

 private:
  static constexpr size_t kMaxFindings = 100;
  std::vector<std::string>& out_;
  size_t count_ = 0;
};

// An integer matrix of the file.
struct FileMatrix {
  const std::vector<int64_t>* cells = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t At(int64_t row, int64_t col) const {
    return (*cells)[static_cast<size_t>(row * cols + col)];
  }
};

struct PlacementParts {
  // None where the file's number is missing or cannot be used.
  std::optional<int64_t> num_layers, num_experts, num_slots, num_gpus;
  // None where the map is missing, ragged or of another shape than the numbers say.
  std::optional<FileMatrix> slots;   // physical_to_logical_map [L, S]
  std::optional<FileMatrix> counts;  // logical_replica_count [L, E]
  // The GPU of each slot; empty unless `slots` and both numbers are there.
  std::vector<int64_t> gpu_of;

  // Slots of each expert in a layer, rising; ids out of range are left out. REQUIRES: slots and
  // num_experts.
  std::vector<std::vector<int64_t>> SlotsByExpert(int64_t layer) const;
};

// Views into `object`, which must outlive them. What cannot be used is told in `broken`: the shape
// rules.
PlacementParts ReadParts(const wire::JsonValue& object, std::vector<std::string>& broken);

// Whether the rows of a map are as many and as long as told; each that is not is a finding.
// `numbers` has at least two levels; `what` names the entries of a row.
struct ExpectedRows {
  std::string_view key;
  std::optional<int64_t> rows;
  std::optional<int64_t> cols;
  const char* what;
};
bool CheckLengths(const wire::JsonNumbers& numbers, const ExpectedRows& expected,
                  std::vector<std::string>& broken);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_LINT_PARTS_H_

// `eplbctl lint`: says every rule that a placement file breaks.
#ifndef EPLB_CLIENT_CLI_LINT_H_
#define EPLB_CLIENT_CLI_LINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/json_value.h"
#include "client/cli/flags.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

// A placement file taken apart as written, for rules that go on after the first broken one.

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

// Every rule that a placement file must obey, checked on the file as written.

struct Findings {
  std::vector<std::string> broken;    // one sentence each
  std::vector<std::string> warnings;  // replicas of an expert on one GPU
};

// Unlike PlacementFromJson, which stops at the first, this names all broken rules: shapes, ids in
// range, every expert in a slot, agreement of the three maps, padding, replica shares,
// slots_per_gpu. A rule that needs a broken number or a ragged map is left out. At most 100
// findings a rule; a last sentence counts the rest. cost: O(L * (S log S + E * X)).
Findings CheckPlacement(const wire::JsonValue& object);

struct LintOptions {
  std::string placement;
  std::optional<int32_t> gpus;  // of another system's file that has no GPUs
  std::string load;             // path, may be empty: layers and experts must be the same
  LoadReading reading;
  std::string against;  // path of another placement, may be empty: the shape must be the same
  bool strict = false;  // duplicates on a GPU break a rule
};

// One broken rule a line on stdout, beginning with the file's name; warnings begin with "warning:".
// Exit 8 when a rule is broken, 0 when none, 2 when a file cannot be read as what it should be.
Output RunLint(const LintOptions& options);

void AddLint(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_LINT_H_

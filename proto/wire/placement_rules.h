// The rules that a placement file must obey, checked on the file as written. The reader reports the
// first broken rule, `eplbctl lint` all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/json_value.h"

namespace eplb::wire {

// Largest distance from 1 of an expert's summed shares, because other writers round the digits.
inline constexpr double kShareTolerance = 1e-6;

// Collects the findings of one rule. Only the first 100 are kept; a last sentence counts the rest.
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

struct FileParts {
  // Absent if the file's number is missing or cannot be used.
  std::optional<int64_t> num_layers, num_experts, num_slots, num_gpus;
  // Absent if the map is missing, ragged or of another shape than the numbers.
  std::optional<FileMatrix> slots;   // physical_to_logical_map [L, S]
  std::optional<FileMatrix> counts;  // logical_replica_count [L, E]
  // The GPU of each slot; empty unless `slots` and both numbers are present.
  std::vector<int64_t> gpu_of;

  // Slots of each expert in a layer, rising; ids out of range are left out. REQUIRES: slots and
  // num_experts.
  std::vector<std::vector<int64_t>> SlotsByExpert(int64_t layer) const;
};

struct Findings {
  std::vector<std::string> broken;    // one sentence each
  std::vector<std::string> warnings;  // replicas of an expert on one GPU
};

// Enters the GPU of each slot. REQUIRES: num_slots and num_gpus.
void NumberGpus(FileParts& parts);

// Checks the map of slots, all that other systems' files have: ids in range, every expert in a
// slot, replicas of an expert on one GPU. REQUIRES: slots.
void CheckSlotMap(const FileParts& parts, Findings& findings);

// Checks a file of ours: shapes, ids in range, every expert in a slot, agreement of the three maps,
// padding, replica shares, slots_per_gpu. A rule that needs a broken number or a ragged map is left
// out. At most 100 findings a rule; a last sentence counts the rest.
// cost: O(L * (S log S + E * X)).
Findings CheckPlacement(const JsonValue& object);

}  // namespace eplb::wire

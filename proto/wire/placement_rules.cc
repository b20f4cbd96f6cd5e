// The rules of a placement file, each on the file as written.
#include "proto/wire/placement_rules.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"

namespace eplb::wire {

Rule::~Rule() {
  if (count_ > kMaxFindings) {
    out_.push_back(absl::StrCat("and ", count_ - kMaxFindings, " more like the one above"));
  }
}

std::vector<std::vector<int64_t>> FileParts::SlotsByExpert(int64_t layer) const {
  std::vector<std::vector<int64_t>> result(static_cast<size_t>(*num_experts));
  for (int64_t slot = 0; slot < slots->cols; ++slot) {
    const int64_t expert = slots->At(layer, slot);
    if (expert >= 0 && expert < *num_experts) result[static_cast<size_t>(expert)].push_back(slot);
  }
  return result;
}

namespace {

using Sentences = std::vector<std::string>;

constexpr int64_t kMaxCount = int64_t{1} << 20;
constexpr std::string_view kIndexRange = "-1..2^31-1";

std::optional<int64_t> ReadCount(const JsonValue& object, std::string_view key, Sentences& broken) {
  const absl::StatusOr<int64_t> number = GetInteger(object, key);
  if (!number.ok()) {
    broken.emplace_back(number.status().message());
    return std::nullopt;
  }
  if (*number >= 1 && *number <= kMaxCount) return *number;
  broken.push_back(absl::StrCat(std::string(key), " is ", *number, ", expected 1..", kMaxCount));
  return std::nullopt;
}

void ReadShape(const JsonValue& object, FileParts& parts, Sentences& broken) {
  parts.num_layers = ReadCount(object, "num_layers", broken);
  parts.num_experts = ReadCount(object, "num_logical_experts", broken);
  parts.num_slots = ReadCount(object, "num_slots", broken);
  parts.num_gpus = ReadCount(object, "num_gpus", broken);
  const std::optional<int64_t> num_nodes = ReadCount(object, "num_nodes", broken);
  ReadCount(object, "num_groups", broken);
  Rule rule(broken);
  if (parts.num_slots && parts.num_experts && *parts.num_slots < *parts.num_experts) {
    rule.Add("num_slots is ", *parts.num_slots, ", fewer than the ", *parts.num_experts,
             " experts");
  }
  if (parts.num_slots && parts.num_gpus && *parts.num_slots < *parts.num_gpus) {
    rule.Add("num_slots is ", *parts.num_slots, ", fewer than the ", *parts.num_gpus, " GPUs");
  }
  if (parts.num_gpus && num_nodes && *parts.num_gpus % *num_nodes != 0) {
    rule.Add("num_gpus is ", *parts.num_gpus, ", not a multiple of the ", *num_nodes, " nodes");
  }
}

int64_t SlotsOf(int64_t gpu, int64_t num_slots, int64_t num_gpus) {
  return num_slots / num_gpus + (gpu < num_slots % num_gpus ? 1 : 0);
}

void CheckSlotsPerGpu(const JsonValue& object, const FileParts& parts, Sentences& broken) {
  if (!parts.num_slots || !parts.num_gpus) return;
  const int64_t num_slots = *parts.num_slots;
  const int64_t num_gpus = *parts.num_gpus;
  Rule rule(broken);
  if (object.Find("slots_per_gpu") == nullptr) {
    if (num_slots % num_gpus != 0) {
      rule.Add("slots_per_gpu is missing, and ", num_slots, " slots are not a multiple of ",
               num_gpus, " GPUs");
    }
    return;
  }
  const auto numbers = GetNumbers(object, "slots_per_gpu", 1);
  if (!numbers.ok()) return rule.Add(numbers.status().message());
  const absl::Status integers = CheckIntegers(**numbers, "slots_per_gpu", kIndexRange);
  if (!integers.ok()) return rule.Add(integers.message());
  const std::vector<int64_t>& given = (*numbers)->integers;
  if (std::ssize(given) != num_gpus) {
    return rule.Add("slots_per_gpu has ", given.size(), " entries, num_gpus is ", num_gpus);
  }
  for (int64_t gpu = 0; gpu < num_gpus; ++gpu) {
    const int64_t slots = given[static_cast<size_t>(gpu)];
    const int64_t expected = SlotsOf(gpu, num_slots, num_gpus);
    if (slots != expected) {
      rule.Add("slots_per_gpu of GPU ", gpu, " is ", slots, ", expected ", expected);
    }
  }
}

// The expected rows of a map; each row that differs is a finding. what: the entries of a row.
struct ExpectedRows {
  std::string_view key;
  std::optional<int64_t> rows;
  std::optional<int64_t> cols;
  const char* what;
};

// REQUIRES: `numbers` has at least two levels.
bool CheckLengths(const JsonNumbers& numbers, const ExpectedRows& expected, Sentences& broken) {
  Rule rule(broken);
  const std::string key(expected.key);
  const std::vector<int64_t>& lengths = numbers.children[1];
  const auto rows = std::ssize(lengths);
  if (expected.rows && rows != *expected.rows) {
    rule.Add(key, " has ", rows, " layers, num_layers is ", *expected.rows);
  }
  const int64_t cols = expected.cols.value_or(lengths.front());
  for (size_t layer = 0; layer < lengths.size(); ++layer) {
    if (lengths[layer] == cols) continue;
    rule.Add(key, " layer ", layer, " has ", lengths[layer], " entries, expected ", cols, " ",
             expected.what);
  }
  return rule.kept();
}

std::optional<FileMatrix> ReadMatrix(const JsonValue& object, const ExpectedRows& expected,
                                     Sentences& broken) {
  const auto numbers = GetNumbers(object, expected.key, 2);
  if (!numbers.ok()) {
    broken.emplace_back(numbers.status().message());
    return std::nullopt;
  }
  if (!CheckLengths(**numbers, expected, broken)) return std::nullopt;
  const absl::Status integers = CheckIntegers(**numbers, expected.key, kIndexRange);
  if (!integers.ok()) {
    broken.emplace_back(integers.message());
    return std::nullopt;
  }
  return FileMatrix{.cells = &(*numbers)->integers,
                    .rows = static_cast<int64_t>((*numbers)->children[1].size()),
                    .cols = (*numbers)->children[1].front()};
}

FileParts ReadParts(const JsonValue& object, std::vector<std::string>& broken) {
  FileParts parts;
  ReadShape(object, parts, broken);
  CheckSlotsPerGpu(object, parts, broken);
  parts.slots = ReadMatrix(object,
                           {.key = "physical_to_logical_map",
                            .rows = parts.num_layers,
                            .cols = parts.num_slots,
                            .what = "slots"},
                           broken);
  parts.counts = ReadMatrix(object,
                            {.key = "logical_replica_count",
                             .rows = parts.num_layers,
                             .cols = parts.num_experts,
                             .what = "experts"},
                            broken);
  if (parts.slots && parts.num_slots && parts.num_gpus && *parts.num_slots >= *parts.num_gpus) {
    NumberGpus(parts);
  }
  return parts;
}

size_t Index(int64_t i) { return static_cast<size_t>(i); }

// The first slot of each GPU that holds something, by layer and then slot; none: it is empty.
struct HeldSlot {
  int64_t layer;
  int64_t slot;
};
std::vector<std::optional<HeldSlot>> FindHeldSlots(const FileParts& parts) {
  std::vector<std::optional<HeldSlot>> held(
      parts.gpu_of.empty() ? 0 : Index(parts.num_gpus.value_or(0)));
  for (int64_t layer = 0; layer < parts.slots->rows; ++layer) {
    for (int64_t slot = 0; slot < std::ssize(parts.gpu_of); ++slot) {
      std::optional<HeldSlot>& first = held[Index(parts.gpu_of[Index(slot)])];
      if (!first.has_value() && parts.slots->At(layer, slot) != -1) first = {layer, slot};
    }
  }
  return held;
}

void CheckSlots(const FileParts& parts, Sentences& broken) {
  const std::vector<std::optional<HeldSlot>> held = FindHeldSlots(parts);
  Rule range(broken);
  Rule empty(broken);
  for (int64_t layer = 0; layer < parts.slots->rows; ++layer) {
    for (int64_t slot = 0; slot < parts.slots->cols; ++slot) {
      const int64_t expert = parts.slots->At(layer, slot);
      if (expert == -1 && !parts.gpu_of.empty()) {
        const int64_t gpu = parts.gpu_of[Index(slot)];
        const std::optional<HeldSlot>& other = held[Index(gpu)];
        if (!other.has_value()) continue;
        empty.Add("layer ", layer, " slot ", slot, " holds -1, but GPU ", gpu,
                  " holds an expert in layer ", other->layer, " slot ", other->slot);
      } else if (expert < -1 || (parts.num_experts && expert >= *parts.num_experts)) {
        range.Add("layer ", layer, " slot ", slot, " holds expert ", expert, ", expected 0..",
                  parts.num_experts.value_or(1) - 1);
      }
    }
  }
}

void CheckEveryExpertHeld(const FileParts& parts, Sentences& broken) {
  Rule rule(broken);
  for (int64_t layer = 0; layer < parts.slots->rows; ++layer) {
    const auto slots = parts.SlotsByExpert(layer);
    for (size_t expert = 0; expert < slots.size(); ++expert) {
      if (slots[expert].empty()) rule.Add("layer ", layer, ": expert ", expert, " is in no slot");
    }
  }
}

void CheckDuplicates(const FileParts& parts, Sentences& warnings) {
  if (parts.gpu_of.empty()) return;
  Rule rule(warnings);
  for (int64_t layer = 0; layer < parts.slots->rows; ++layer) {
    std::map<std::pair<int64_t, int64_t>, int64_t> held;
    for (int64_t slot = 0; slot < parts.slots->cols; ++slot) {
      const int64_t expert = parts.slots->At(layer, slot);
      if (expert >= 0) ++held[{parts.gpu_of[Index(slot)], expert}];
    }
    for (const auto& [where, count] : held) {
      if (count == 1) continue;
      rule.Add("layer ", layer, " GPU ", where.first, " holds expert ", where.second, " in ", count,
               " slots");
    }
  }
}

void CheckCounts(const FileParts& parts, Sentences& broken) {
  Rule rule(broken);
  for (int64_t layer = 0; layer < std::min(parts.counts->rows, parts.slots->rows); ++layer) {
    const auto slots = parts.SlotsByExpert(layer);
    for (int64_t expert = 0; expert < *parts.num_experts; ++expert) {
      const size_t held = slots[Index(expert)].size();
      const int64_t count = parts.counts->At(layer, expert);
      if (count == static_cast<int64_t>(held)) continue;
      rule.Add("logical_replica_count layer ", layer, " expert ", expert, " is ", count,
               ", physical_to_logical_map holds it in ", held, held == 1 ? " slot" : " slots");
    }
  }
}

// Each entry row of logical_to_physical_map as long as the largest replica count. Nothing can be
// said where an expert is in more slots than that, or in none: the other rules tell it.
void CheckWidths(const FileParts& parts, const JsonNumbers& numbers, Sentences& broken) {
  size_t largest = 1;
  for (int64_t layer = 0; layer < parts.slots->rows; ++layer) {
    for (const auto& slots : parts.SlotsByExpert(layer)) largest = std::max(largest, slots.size());
  }
  const std::vector<int64_t>& widths = numbers.children[2];
  Rule rule(broken);
  if (std::ranges::adjacent_find(widths, std::not_equal_to<>()) == widths.end()) {
    if (Index(widths.front()) != largest) {
      rule.Add("logical_to_physical_map has ", widths.front(),
               " entries an expert, the largest replica count is ", largest);
    }
    return;
  }
  for (size_t i = 0; i < widths.size(); ++i) {
    if (Index(widths[i]) == largest) continue;
    const size_t num_experts = Index(*parts.num_experts);
    rule.Add("logical_to_physical_map layer ", i / num_experts, " expert ", i % num_experts,
             " has ", widths[i], " entries, the largest replica count is ", largest);
  }
}

// The entries of one expert against the slots that hold it.
void CheckEntries(const std::string& place, std::span<const int64_t> entries,
                  std::span<const int64_t> held, int64_t num_slots, Rule& rule) {
  std::vector<int64_t> named;
  bool padded = false;
  for (const int64_t slot : entries) {
    if (slot == -1) {
      padded = true;
      continue;
    }
    if (slot < -1 || slot >= num_slots) {
      rule.Add(place, " names slot ", slot, ", expected 0..", num_slots - 1, " or -1");
      continue;
    }
    if (padded) rule.Add(place, " has padding -1 before slot ", slot);
    if (std::ranges::find(named, slot) != named.end()) {
      rule.Add(place, " names slot ", slot, " twice");
    } else if (!std::ranges::binary_search(held, slot)) {
      rule.Add(place, " names slot ", slot, ", where physical_to_logical_map has another expert");
    }
    named.push_back(slot);
  }
  for (const int64_t slot : held) {
    if (std::ranges::find(named, slot) == named.end()) {
      rule.Add(place, " leaves out slot ", slot, ", which holds it");
    }
  }
}

void CheckReplicaTable(const JsonValue& object, const FileParts& parts, Sentences& broken) {
  const auto found = GetNumbers(object, "logical_to_physical_map", 3);
  if (!found.ok()) return (void)broken.emplace_back(found.status().message());
  const JsonNumbers& numbers = **found;
  const ExpectedRows expected{.key = "logical_to_physical_map",
                              .rows = parts.num_layers,
                              .cols = parts.num_experts,
                              .what = "experts"};
  if (!CheckLengths(numbers, expected, broken)) return;
  const absl::Status integers = CheckIntegers(numbers, expected.key, kIndexRange);
  if (!integers.ok()) return (void)broken.emplace_back(integers.message());
  if (!parts.slots || !parts.num_experts) return;
  CheckWidths(parts, numbers, broken);
  Rule rule(broken);
  const auto num_layers = std::ssize(numbers.children[1]);
  std::span<const int64_t> rest = numbers.integers;
  size_t row = 0;
  for (int64_t layer = 0; layer < std::min(num_layers, parts.slots->rows); ++layer) {
    const auto slots = parts.SlotsByExpert(layer);
    for (int64_t expert = 0; expert < *parts.num_experts; ++expert) {
      const size_t width = Index(numbers.children[2][row++]);
      const std::string place =
          absl::StrCat("logical_to_physical_map layer ", layer, " expert ", expert);
      CheckEntries(place, rest.first(width), slots[Index(expert)], parts.slots->cols, rule);
      rest = rest.subspan(width);
    }
  }
}

void CheckShares(const JsonValue& object, const FileParts& parts, Sentences& broken) {
  if (object.Find("replica_share") == nullptr) return;
  const auto found = GetNumbers(object, "replica_share", 2);
  if (!found.ok()) return (void)broken.emplace_back(found.status().message());
  const JsonNumbers& numbers = **found;
  const ExpectedRows expected{
      .key = "replica_share", .rows = parts.num_layers, .cols = parts.num_slots, .what = "slots"};
  if (!CheckLengths(numbers, expected, broken) || !parts.slots || !parts.num_experts) return;
  std::vector<double> shares = numbers.reals;
  if (numbers.all_integers()) shares.assign(numbers.integers.begin(), numbers.integers.end());
  // Only without a usable num_layers or num_slots can the two still differ.
  if (shares.size() != parts.slots->cells->size()) return;
  Rule range(broken);
  Rule sum(broken);
  for (int64_t layer = 0; layer < parts.slots->rows; ++layer) {
    std::map<int64_t, double> sums;
    for (int64_t slot = 0; slot < parts.slots->cols; ++slot) {
      const double share = shares[Index(layer * parts.slots->cols + slot)];
      const int64_t expert = parts.slots->At(layer, slot);
      if (!(share >= 0 && share <= 1)) {
        range.Add("replica_share layer ", layer, " slot ", slot, " is ", share, ", expected 0..1");
      } else if (expert == -1 && share != 0) {
        range.Add("replica_share layer ", layer, " slot ", slot, " is ", share,
                  ", but the slot holds no expert");
      }
      sums[expert] += share;
    }
    for (const auto& [expert, total] : sums) {
      if (expert < 0 || std::abs(total - 1) <= kShareTolerance) continue;
      sum.Add("replica_share layer ", layer, ": the shares of expert ", expert, " sum to ",
              absl::StrFormat("%.9g", total), ", expected 1");
    }
  }
}

}  // namespace

void NumberGpus(FileParts& parts) {
  for (int64_t gpu = 0; gpu < *parts.num_gpus; ++gpu) {
    const int64_t slots = SlotsOf(gpu, *parts.num_slots, *parts.num_gpus);
    parts.gpu_of.insert(parts.gpu_of.end(), static_cast<size_t>(slots), gpu);
  }
}

void CheckSlotMap(const FileParts& parts, Findings& findings) {
  CheckSlots(parts, findings.broken);
  if (parts.num_experts) CheckEveryExpertHeld(parts, findings.broken);
  CheckDuplicates(parts, findings.warnings);
}

Findings CheckPlacement(const JsonValue& object) {
  Findings findings;
  const FileParts parts = ReadParts(object, findings.broken);
  if (parts.slots) {
    CheckSlotMap(parts, findings);
    if (parts.num_experts && parts.counts) CheckCounts(parts, findings.broken);
  }
  CheckReplicaTable(object, parts, findings.broken);
  CheckShares(object, parts, findings.broken);
  return findings;
}

}  // namespace eplb::wire

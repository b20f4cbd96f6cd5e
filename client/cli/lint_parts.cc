#include "client/cli/lint_parts.h"

#include <utility>

namespace eplb::cli {
namespace {

using wire::JsonNumbers;
using wire::JsonValue;

constexpr int64_t kMaxCount = int64_t{1} << 20;

std::optional<int64_t> ReadCount(const JsonValue& object, std::string_view key,
                                 std::vector<std::string>& broken) {
  const absl::StatusOr<int64_t> number = wire::GetInteger(object, key);
  if (!number.ok()) {
    broken.emplace_back(number.status().message());
    return std::nullopt;
  }
  if (*number >= 1 && *number <= kMaxCount) return *number;
  broken.push_back(absl::StrCat(std::string(key), " is ", *number, ", expected 1..", kMaxCount));
  return std::nullopt;
}

void ReadShape(const JsonValue& object, PlacementParts& parts, std::vector<std::string>& broken) {
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

void CheckSlotsPerGpu(const JsonValue& object, const PlacementParts& parts,
                      std::vector<std::string>& broken) {
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
  const auto numbers = wire::GetNumbers(object, "slots_per_gpu", 1);
  if (!numbers.ok()) return rule.Add(numbers.status().message());
  if (!(*numbers)->all_integers()) return rule.Add("slots_per_gpu holds a number with a point");
  const std::vector<int64_t>& given = (*numbers)->integers;
  if (static_cast<int64_t>(given.size()) != num_gpus) {
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

std::optional<FileMatrix> ReadMatrix(const JsonValue& object, const ExpectedRows& expected,
                                     std::vector<std::string>& broken) {
  const auto numbers = wire::GetNumbers(object, expected.key, 2);
  if (!numbers.ok()) {
    broken.emplace_back(numbers.status().message());
    return std::nullopt;
  }
  if (!CheckLengths(**numbers, expected, broken)) return std::nullopt;
  if (!(*numbers)->all_integers()) {
    broken.push_back(absl::StrCat(std::string(expected.key), " holds a number that is no integer"));
    return std::nullopt;
  }
  return FileMatrix{.cells = &(*numbers)->integers,
                    .rows = static_cast<int64_t>((*numbers)->children[1].size()),
                    .cols = (*numbers)->children[1].front()};
}

}  // namespace

Rule::~Rule() {
  if (count_ > kMaxFindings) {
    out_.push_back(absl::StrCat("and ", count_ - kMaxFindings, " more like the one above"));
  }
}

std::vector<std::vector<int64_t>> PlacementParts::SlotsByExpert(int64_t layer) const {
  std::vector<std::vector<int64_t>> result(static_cast<size_t>(*num_experts));
  for (int64_t slot = 0; slot < slots->cols; ++slot) {
    const int64_t expert = slots->At(layer, slot);
    if (expert >= 0 && expert < *num_experts) result[static_cast<size_t>(expert)].push_back(slot);
  }
  return result;
}

bool CheckLengths(const JsonNumbers& numbers, const ExpectedRows& expected,
                  std::vector<std::string>& broken) {
  Rule rule(broken);
  const std::string key(expected.key);
  const std::vector<int64_t>& lengths = numbers.children[1];
  const auto rows = static_cast<int64_t>(lengths.size());
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

PlacementParts ReadParts(const JsonValue& object, std::vector<std::string>& broken) {
  PlacementParts parts;
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
    for (int64_t gpu = 0; gpu < *parts.num_gpus; ++gpu) {
      const int64_t slots = SlotsOf(gpu, *parts.num_slots, *parts.num_gpus);
      parts.gpu_of.insert(parts.gpu_of.end(), static_cast<size_t>(slots), gpu);
    }
  }
  return parts;
}

}  // namespace eplb::cli

// Mutated files: the reader refuses a file exactly when a rule is broken, and reads any other one
// as all three maps describe it.
#include "proto/wire/placement_rules.h"

#include <gtest/gtest.h>

#include <cctype>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"

#include "base/json_value.h"
#include "proto/wire/placement_json.h"

namespace eplb::wire {
namespace {

std::vector<std::string> Examples() {
  std::vector<std::string> examples;
  for (const TopologyOptions& shape :
       {TopologyOptions{.num_layers = 2, .num_experts = 4, .num_slots = 6, .num_gpus = 2},
        TopologyOptions{.num_layers = 1, .num_experts = 3, .num_slots = 5, .num_gpus = 2},
        TopologyOptions{.num_layers = 3,
        .num_experts = 4,
        .num_slots = 8,
        .num_gpus = 4,
        .num_nodes = 2,
        .num_groups = 2}}) {
    const Placement placement = Placement::Static(*Topology::Make(shape));
    RealMatrix shares(shape.num_layers, shape.num_slots);
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      for (int32_t slot = 0; slot < shape.num_slots; ++slot) {
        const int32_t expert = placement.physical_to_logical_map()(layer, slot);
        shares(layer, slot) =
            1.0 / static_cast<double>(placement.ReplicasOf({layer}, {expert}).size());
      }
    }
    examples.push_back(PlacementToJson(placement));
    examples.push_back(PlacementToJson(placement, &shares));
  }
  return examples;
}

// Changes one number, or removes one character: a digit, a comma, a bracket, part of a key.
std::string Mutated(std::string text, std::mt19937& random) {
  const auto below = [&random](size_t bound) { return random() % bound; };
  if (below(8) == 0) return text.erase(below(text.size()), 1);
  std::vector<std::pair<size_t, size_t>> numbers;  // begin, length
  for (size_t i = 0; i < text.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(text[i])) == 0 && text[i] != '-') continue;
    const size_t begin = i;
    while (i < text.size() &&
           std::string_view("0123456789.-eE+").find(text[i]) != std::string::npos)
      ++i;
    numbers.emplace_back(begin, i - begin);
  }
  constexpr const char* kOthers[] = {"-1", "0", "1", "2", "3", "4", "0.5", "-2", "1e9", "7", "8"};
  const auto [begin, length] = numbers[below(numbers.size())];
  return text.replace(begin, length, kOthers[below(std::size(kOthers))]);
}

TEST(PlacementRulesTest, AFileThatKeepsThemAllIsReadAsItsMapsDescribeIt) {
  std::mt19937 random(20261124);
  int num_broken = 0;
  int num_kept = 0;
  for (const std::string& example : Examples()) {
    for (int i = 0; i < 2000; ++i) {
      std::string text = Mutated(example, random);
      if (random() % 2 == 0) text = Mutated(std::move(text), random);
      // A file without this is not checked: it is no placement.
      if (text.find(R"("format":"eplb.placement.v1")") == std::string::npos) continue;
      const absl::StatusOr<JsonValue> object = ParseJson(text);
      if (!object.ok() || object->kind != JsonValue::Kind::kObject) continue;
      const std::vector<std::string> broken = CheckPlacement(*object).broken;
      const absl::StatusOr<Placement> read = PlacementFromJson(*object);
      ASSERT_EQ(broken.empty(), read.ok()) << text << "\nthe reader: " << read.status() << "\n"
                                           << absl::StrJoin(broken, "; ");
      ++(read.ok() ? num_kept : num_broken);
      if (!read.ok()) continue;
      const JsonValue again = *ParseJson(PlacementToJson(*read));
      for (const char* map :
           {"physical_to_logical_map", "logical_to_physical_map", "logical_replica_count"}) {
        ASSERT_EQ(object->Find(map)->numbers.integers, again.Find(map)->numbers.integers) << text;
      }
    }
  }
  EXPECT_GT(num_broken, 1000);
  EXPECT_GT(num_kept, 100);
}

}  // namespace
}  // namespace eplb::wire

// The rules of eplbctl lint are written apart from the reader's: lint goes on where the reader
// stops. These tests hold both to the same files.
#include "client/cli/placement_rules.h"

#include <gtest/gtest.h>

#include <cctype>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"

#include "base/json_value.h"
#include "proto/wire/placement_json.h"

namespace eplb::cli {
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
    examples.push_back(wire::PlacementToJson(placement));
    examples.push_back(wire::PlacementToJson(placement, &shares));
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

TEST(LintTest, AFileBreaksARuleExactlyWhenTheReaderRefusesIt) {
  std::mt19937 random(20261124);
  int num_broken = 0;
  int num_kept = 0;
  for (const std::string& example : Examples()) {
    for (int i = 0; i < 2000; ++i) {
      std::string text = Mutated(example, random);
      if (random() % 2 == 0) text = Mutated(std::move(text), random);
      // A file without this is not checked: it is no placement.
      if (text.find(R"("format":"eplb.placement.v1")") == std::string::npos) continue;
      const absl::StatusOr<wire::JsonValue> object = wire::ParseJson(text);
      if (!object.ok() || object->kind != wire::JsonValue::Kind::kObject) continue;
      const std::vector<std::string> broken = CheckPlacement(*object).broken;
      const absl::Status read = wire::PlacementFromJson(*object).status();
      ASSERT_EQ(broken.empty(), read.ok())
          << text << "\nthe reader: " << read << "\nlint: " << absl::StrJoin(broken, "; ");
      ++(read.ok() ? num_kept : num_broken);
    }
  }
  EXPECT_GT(num_broken, 1000);
  EXPECT_GT(num_kept, 100);
}

}  // namespace
}  // namespace eplb::cli

// The recorded answers of DeepSeek's `rebalance_experts`, in both tie orders.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "placement/policies/deepseek_policy.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

using Json = nlohmann::json;

const Json& GoldenCases() {
  static const Json cases = [] {
    std::ifstream file(EPLB_TEST_DATA "/deepseek_eplb.json");
    return Json::parse(file).at("cases");
  }();
  return cases;
}

// Integers go to float32 directly, floats were written as doubles and are rounded once.
FloatMatrix WeightOf(const Json& golden) {
  FloatMatrix weight(golden["layers"].get<int>(), golden["experts"].get<int>());
  for (Eigen::Index layer = 0; layer < weight.rows(); ++layer) {
    for (Eigen::Index expert = 0; expert < weight.cols(); ++expert) {
      const Json& cell = golden["weight"][layer][expert];
      weight(layer, expert) = cell.is_number_integer() ? static_cast<float>(cell.get<int64_t>())
                                                       : static_cast<float>(cell.get<double>());
    }
  }
  return weight;
}

DeepseekShape ShapeOf(const Json& golden) {
  return {.num_slots = golden["slots"],
          .num_groups = golden["groups"],
          .num_nodes = golden["nodes"],
          .num_gpus = golden["gpus"]};
}

// A key of the case, or its stable variant where the two orders differ.
const Json& Expected(const Json& golden, const std::string& key, TieBreak tie_break) {
  const bool stable = tie_break == TieBreak::kStable && golden.contains("stable_" + key);
  return golden[stable ? "stable_" + key : key];
}

Json Rows(const IndexMatrix& matrix) {
  Json rows = Json::array();
  for (const auto& row : matrix.rowwise()) {
    rows.push_back(std::vector<int>(row.begin(), row.end()));
  }
  return rows;
}

// log2phy out of slots and ranks, [L][E][count]: the file leaves out the padding.
Json LogicalToPhysical(const DeepseekMaps& maps) {
  Json result(static_cast<size_t>(maps.counts.rows()), Json::array());
  for (Eigen::Index layer = 0; layer < maps.counts.rows(); ++layer) {
    for (const int32_t count : maps.counts.row(layer)) {
      result[layer].emplace_back(static_cast<size_t>(count), -1);
    }
    for (Eigen::Index slot = 0; slot < maps.physical_to_logical.cols(); ++slot) {
      result[layer][maps.physical_to_logical(layer, slot)][maps.replica_rank(layer, slot)] = slot;
    }
  }
  return result;
}

class DeepseekGoldenTest : public ::testing::TestWithParam<TieBreak> {
 protected:
  std::string mode() const { return GetParam() == TieBreak::kStable ? "stable" : "compat"; }
};

TEST_P(DeepseekGoldenTest, EveryRecordedCaseIsReproducedBitForBit) {
  int equal = 0;
  for (const Json& golden : GoldenCases()) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const auto maps = RebalanceExperts(WeightOf(golden), ShapeOf(golden), GetParam());
    bool same = false;
    if (golden.contains("error")) {
      same = maps.status().code() == absl::StatusCode::kInvalidArgument;
    } else if (maps.ok()) {
      same = Rows(maps->physical_to_logical) == Expected(golden, "phy2log", GetParam()) &&
             Rows(maps->counts) == golden["logcnt"] &&
             LogicalToPhysical(*maps) == Expected(golden, "log2phy", GetParam());
    }
    EXPECT_TRUE(same) << maps.status();
    if (same) ++equal;
  }
  std::printf("golden parity %s %d of %zu\n", mode().c_str(), equal, GoldenCases().size());
  EXPECT_EQ(equal, 45);
}

INSTANTIATE_TEST_SUITE_P(BothOrders, DeepseekGoldenTest,
                         ::testing::Values(TieBreak::kStable, TieBreak::kCompat));

}  // namespace
}  // namespace eplb

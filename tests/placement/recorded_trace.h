// The windows of a training that was recorded: 8 layers of 64 experts, 5 steps each.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "placement/load.h"

#include <nlohmann/json.hpp>

namespace eplb {

inline std::vector<Load> RecordedWindows() {
  std::vector<Load> windows;
  std::ifstream file(EPLB_TEST_DATA "/moe64_aux.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto rows = nlohmann::json::parse(line)["load"].get<std::vector<std::vector<int64_t>>>();
    LoadMatrix counts(rows.size(), rows[0].size());
    for (size_t i = 0; i < rows.size(); ++i) {
      counts.row(static_cast<Eigen::Index>(i)) =
          Eigen::Map<const Eigen::Array<int64_t, 1, Eigen::Dynamic>>(rows[i].data(), 64);
    }
    windows.push_back(Load::FromCounts(counts).value());
  }
  return windows;
}

}  // namespace eplb

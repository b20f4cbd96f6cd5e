// The loads of a layer's GPUs before and after a plan, drawn for a terminal.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "client/cli/terminal.h"

namespace eplb::cli {

struct GpuPicture {
  std::string before_name;         // name of `before`, at most 9 columns
  std::string after_name;          // name of `after`, at most 9 columns
  std::span<const double> before;  // [G]
  std::span<const double> after;   // [G]
  std::vector<bool> unusable;      // [G], GPUs that `after` cannot use
  double mean = 0;                 // > 0; every load is told as a multiple of it
};

// Few GPUs get a bar each; a histogram counts more, and names the hottest and the coolest. No line
// is wider than the terminal.
std::string DrawGpuLoads(const GpuPicture& picture, const Terminal& terminal);

}  // namespace eplb::cli

// Shared by all fuzz targets. A target is one file with LLVMFuzzerTestOneInput: any bytes must
// end in a value or in an error of one line, never in a crash, a hang or memory without bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/status/status.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace eplb::fuzz {

// Ends the process, which is how a target tells a finding.
inline void Require(bool holds, std::string_view what) {
  if (holds) return;
  (void)std::fprintf(stderr, "fuzz: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

// An error is one line that says something.
inline void RequireOneLine(const absl::Status& status) {
  Require(status.ok() || !status.message().empty(), "an error without a message");
  Require(status.message().find('\n') == absl::string_view::npos, "an error of several lines");
}

inline std::string_view AsText(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace eplb::fuzz

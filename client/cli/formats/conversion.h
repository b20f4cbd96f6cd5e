// One placement file becomes one of another format.
// threads: safe, no state.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/formats/format_table.h"

namespace eplb {

struct ConversionOptions {
  std::string from;
  std::string to;
  std::string in;      // read
  std::string out;     // not written: its ending chooses among the files of `deepseek`
  ShapeNumbers flags;  // numbers that the source lacks
};

struct Conversion {
  std::string bytes;               // bytes of the new file
  std::vector<std::string> notes;  // losses and assumptions, a sentence each
};

// errors: InvalidArgument beginning with the file's name, or naming the flag that says what the
// source does not; NotFound.
absl::StatusOr<Conversion> ConvertPlacementFile(const ConversionOptions& options);

}  // namespace eplb

// Reads --load and --trace files, whatever their format.
// threads: safe, no state.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/formats/layer_numbers.h"
#include "client/cli/formats/load_window.h"

namespace eplb {

struct LoadReading {
  std::string format = {};  // empty: the content tells; else one of LoadFormatNames()
  // The rows to read. A row's number is the model's layer where the file has it, else its place.
  LayerChoice layers = {};
};

// Without a format the content tells: a directory with meta_info.json, the magic of .npy and .npz,
// JSON by its keys, CSV of numbers. LoadFile::notes has what was skipped, what a table of bare
// numbers looks like if it is no load, and the rows of a load of sglang that look like dense
// layers. errors, beginning with `path` and of one line: as ReadRegularFile, ParseLoadJson and
// ParseLoadNpy; InvalidArgument for a format of another name and for a dump of torch.save, which
// only the Python package reads; for a table that is surely no load; for a choice of layers that
// the file does not have.
absl::StatusOr<LoadFile> ReadLoadFile(const std::string& path, const LoadReading& reading = {});

// The notes as one line for stderr, beginning with "note: "; empty without any.
std::string NotesOn(const std::string& path, const LoadFile& file);

std::vector<std::string> LoadFormatNames();

}  // namespace eplb

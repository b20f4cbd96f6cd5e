// Reads --load and --trace files, whatever their format.
// threads: safe, no state.
#pragma once

#include <cstdint>
#include <optional>
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
  // Number of experts, for a file of single choices, which does not have it.
  std::optional<int32_t> experts = {};
};

// Without a format the content tells: a directory with meta_info.json or router traces, the magic
// of .npy, .npz and .pt, JSON by its keys, CSV of numbers. LoadFile::notes has what was skipped,
// what a table of bare numbers looks like if it is no load, and the rows of a load of sglang that
// look like dense layers. errors, beginning with `path` and of one line: as ReadRegularFile,
// ParseLoadJson, ParseLoadNpy, ReadTorchTensor and ReadRouterTraces; InvalidArgument for a format
// of another name; for a table that is surely no load; for a choice of layers or a number of
// experts that the file does not have.
absl::StatusOr<LoadFile> ReadLoadFile(const std::string& path, const LoadReading& reading = {});

// The notes as one line for stderr, beginning with "note: "; empty without any.
std::string NotesOn(const std::string& path, const LoadFile& file);

std::vector<std::string> LoadFormatNames();

}  // namespace eplb

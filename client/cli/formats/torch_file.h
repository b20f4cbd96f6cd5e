// Files of torch.save, whose tensors are read as plain data: nothing in them is executed.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "client/cli/formats/arrays.h"

namespace eplb {

// True for a zip whose first member is */data.pkl, and for a bare pickle as torch 1.5 wrote.
bool IsTorchFile(std::string_view bytes);

struct TorchTensor {
  Array array;
  bool is_alone = false;  // the file is this tensor; otherwise a dictionary holds it
};

// Returns the tensor that the file is, or else the one that its dictionary has under `key`.
// Tensors may be views with any strides. The pickle in the file may have the opcodes that
// torch.save writes for tensors, dictionaries, lists, tuples, text and numbers.
// errors: InvalidArgument: no such file, cut off, compressed, a limit exceeded, another opcode or
// class, a tensor of another type or one that its storage does not hold.
// source: torch/serialization.py; Lib/pickletools.py of Python.
absl::StatusOr<TorchTensor> ReadTorchTensor(std::string_view bytes, std::string_view key);

}  // namespace eplb

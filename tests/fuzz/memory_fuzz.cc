// A job's memory as the store keeps it and ranks carry it. What is accepted survives being written
// and read again; a rank's copy keeps its bytes whatever they are, within their bound.
#include <string>

#include "proto/wire/convert.h"
#include "proto/wire/messages.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using eplb::fuzz::Require;
  const std::string bytes(eplb::fuzz::AsText(data, size));
  const absl::StatusOr<eplb::wire::JobMemory> memory = eplb::wire::MemoryFromBytes(bytes);
  eplb::fuzz::RequireOneLine(memory.status());
  if (memory.ok()) {
    const auto again = eplb::wire::MemoryFromBytes(eplb::wire::MemoryBytes(*memory));
    Require(again.ok() && *again == *memory, "a memory changes when it is written");
  }
  const eplb::wire::CarriedMemory carried = eplb::wire::CarriedFromBytes(bytes);
  Require(carried.bytes == (size > eplb::wire::kMaxMemoryBytes ? "" : bytes),
          "a rank changes what it carries");
  Require(carried.value.has_value() == (memory.ok() && !bytes.empty()),
          "a rank's copy says something else");
  return 0;
}

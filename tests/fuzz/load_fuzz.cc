// Load files: every reader gets the bytes, and what is accepted must be a load that can be used.
#include <vector>

#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/formats/load_json.h"
#include "client/cli/formats/npy.h"
#include "client/cli/formats/safetensors.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace eplb {
namespace {

void CheckWindows(const absl::StatusOr<std::vector<LoadWindow>>& windows) {
  fuzz::RequireOneLine(windows.status());
  if (!windows.ok()) return;
  fuzz::Require(!windows->empty(), "a load without a window");
  for (const WindowRule::Kind kind : {WindowRule::Kind::kSum, WindowRule::Kind::kLast}) {
    const absl::StatusOr<Load> load = CombineWindows(*windows, {.kind = kind});
    fuzz::RequireOneLine(load.status());
  }
  for (const LoadWindow& window : *windows) {
    fuzz::Require(window.load.num_layers() > 0 && window.load.num_experts() > 0, "an empty load");
    fuzz::Require(window.last_step >= window.first_step, "a window that ends before it begins");
  }
}

void CheckFile(const absl::StatusOr<LoadFile>& file) {
  if (!file.ok()) return CheckWindows(file.status());
  CheckWindows(file->windows);
}

}  // namespace
}  // namespace eplb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = eplb::fuzz::AsText(data, size);
  eplb::CheckFile(eplb::ParseLoadJson("in", bytes));
  eplb::CheckWindows(eplb::ParseLoadNpy(bytes));
  eplb::CheckFile(eplb::ParseDeepseekLoad("in", bytes));
  eplb::CheckFile(eplb::ParseVllmLoad("in", bytes));
  const absl::StatusOr<eplb::wire::JsonValue> value = eplb::wire::ParseJson(bytes);
  if (value.ok()) eplb::CheckFile(eplb::SglangLoad(*value));
  eplb::fuzz::RequireOneLine(eplb::ParseSafetensors(bytes).status());
  const eplb::fuzz::MemoryFile file(bytes);
  eplb::CheckFile(eplb::ReadLoadFile(file.path()));
  eplb::CheckFile(eplb::ReadLoadFile(file.path(), {.experts = 4}));
  return 0;
}

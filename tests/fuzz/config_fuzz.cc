// The daemon's TOML file: read or refused in one line, and the same text gives the same answer.
#include "server/config/config.h"
#include "server/core/values/config.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const eplb::fuzz::MemoryFile file(eplb::fuzz::AsText(data, size));
  const absl::StatusOr<eplb::DaemonConfig> config =
      eplb::LoadConfig({.file = file.path(), .flags = {}});
  eplb::fuzz::RequireOneLine(config.status());
  if (!config.ok()) return 0;
  const eplb::wire::Settings settings = eplb::core::Config(config->keys).settings;
  eplb::fuzz::Require(settings.every_steps >= 0, "a limit outside its range");
  eplb::fuzz::Require(settings.min_gain >= 0 && settings.min_gain <= 1, "a fraction outside 0..1");
  return 0;
}

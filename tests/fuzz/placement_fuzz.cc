// Placement files of every format, placements.jsonl and the ranks' logs. What is accepted is
// written and read back as the same placement.
#include <string>

#include "client/cli/formats/format_table.h"
#include "client/run_log/run_directory.h"
#include "placement/digest.h"
#include "proto/wire/placement_files.h"
#include "proto/wire/placement_json.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace eplb {
namespace {

void CheckWritten(const PlacementFormat& format, const Placement& placement) {
  const absl::StatusOr<std::string> written =
      format.write(placement, {.path = "out.json", .layers = {}});
  fuzz::RequireOneLine(written.status());
  if (!written.ok() || !format.holds_ranks({.path = "out.json", .layers = {}})) return;
  const absl::StatusOr<PlacementParts> again = format.parse("out.json", *written);
  fuzz::Require(again.ok(), "what was written cannot be read");
  fuzz::Require((again->slots == placement.physical_to_logical_map()).all(),
                "what was written is read as another placement");
}

void CheckFormat(const PlacementFormat& format, std::string_view bytes) {
  const absl::StatusOr<PlacementParts> parts = format.parse("in", bytes);
  fuzz::RequireOneLine(parts.status());
  if (!parts.ok()) return;
  const absl::StatusOr<Placement> placement = MakePlacement(*parts, parts->frame);
  fuzz::RequireOneLine(placement.status());
  if (placement.ok()) CheckWritten(format, *placement);
}

void CheckOwn(std::string_view bytes) {
  const absl::StatusOr<Placement> placement = wire::PlacementFromJson(bytes);
  fuzz::RequireOneLine(placement.status());
  if (!placement.ok()) return;
  const absl::StatusOr<Placement> again =
      wire::PlacementFromJson(wire::PlacementToJson(*placement));
  fuzz::Require(again.ok() && DigestOf(*again) == DigestOf(*placement),
                "the JSON of a placement is another placement");
}

}  // namespace
}  // namespace eplb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = eplb::fuzz::AsText(data, size);
  for (const eplb::PlacementFormat& format : eplb::PlacementFormats()) {
    eplb::CheckFormat(format, bytes);
  }
  eplb::CheckOwn(bytes);
  const eplb::fuzz::MemoryFile file(bytes);
  eplb::fuzz::RequireOneLine(eplb::ReadPlacementsLog(file.path()).status());
  eplb::fuzz::RequireOneLine(eplb::ReadHistoryFile(file.path()).status());
  return 0;
}

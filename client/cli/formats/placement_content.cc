#include "client/cli/formats/placement_content.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "base/files.h"
#include "base/json_value.h"
#include "client/cli/formats/csv.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/npy.h"
#include "client/cli/formats/torch_file.h"
#include "client/cli/formats/zip_archive.h"

namespace eplb {
namespace {

// The name of the format that has such an object; empty: none.
std::string_view FormatOfObject(const wire::JsonValue& object) {
  const auto has = [&object](std::string_view key) { return object.Find(key) != nullptr; };
  if (has("format")) return "eplb";
  if (IsVllmRecord(object)) return "vllm";
  if (has("layer_list")) return "ascend";
  if (has("initial_global_assignments") || has("moe_config")) return "trtllm";
  // Ours without "format" is damaged, not a file of deepseek.
  if (!has("physical_to_logical_map") || has("num_gpus")) return {};
  return has("logical_to_physical_map") ? "deepseek" : "sglang";
}

std::string_view FormatName(const std::string& path, std::string_view bytes) {
  if (IsTorchFile(bytes)) return "sglang";
  if (bytes.starts_with(kNpyMagic) || bytes.starts_with(kZipMagic)) return "deepseek";
  const size_t start = std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size());
  if (bytes.substr(start).starts_with('{')) {
    // A file of vllm has a value on each line. Other files are one value.
    const std::vector<TextLine> lines = SplitLines(bytes);
    absl::StatusOr<wire::JsonValue> object = wire::ParseJson(lines.front().text);
    if (!object.ok()) object = wire::ParseJson(bytes);
    // The reader of our own files reports what is wrong with a text that is no JSON.
    return object.ok() ? FormatOfObject(*object) : "eplb";
  }
  if (LooksLikeCsv(bytes) || path.ends_with(".csv")) return "deepseek";
  return bytes.find("initial_global_assignments") != std::string_view::npos ? "trtllm"
                                                                            : std::string_view();
}

}  // namespace

absl::StatusOr<PlacementFormat> DetectPlacementFormat(const std::string& path,
                                                      std::string_view bytes) {
  const std::string_view name = FormatName(path, bytes);
  if (!name.empty()) return FindPlacementFormat(name);
  return InvalidInput(path,
                      ": is no placement; tried \"eplb.placement.v1\", deepseek's maps (.npy, "
                      ".npz, JSON, CSV), sglang's physical_to_logical_map, trtllm's YAML, vllm's "
                      "eplb_initial_mapping and ascend's layer_list");
}

absl::Status NameForeignPlacement(const std::string& path, const absl::Status& error) {
  const absl::StatusOr<std::string> bytes = ReadRegularFile(path);
  if (!bytes.ok()) return error;
  const absl::StatusOr<PlacementFormat> format = DetectPlacementFormat(path, *bytes);
  if (!format.ok() || format->name == "eplb") return error;
  const std::string name(format->name);
  return InvalidInput(path, ": is a placement of ", name, ", convert it: eplbctl convert --from ",
                      name, " ", path, " OUT.json");
}

}  // namespace eplb

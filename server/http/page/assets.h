// The files of the web page, as they were when this program was built.
#pragma once

#include <span>
#include <string_view>

namespace eplb {

struct PageAsset {
  std::string_view name;  // "index.html", "uPlot.js"
  std::string_view content_type;
  std::string_view bytes;
};

// By name. threads: safe.
std::span<const PageAsset> PageAssets();
// Null for a name that there is not.
const PageAsset* FindPageAsset(std::string_view name);

}  // namespace eplb

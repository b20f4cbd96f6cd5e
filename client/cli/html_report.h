// The daemon's web page as one file, with the documents that it shows: for `report` and `replay`.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include <nlohmann/json_fwd.hpp>

namespace eplb::cli {

// documents: as PageDocuments gives them; bytes in them that are not UTF-8 are replaced.
// returns: HTML that asks for no other file. Its Content-Security-Policy allows the page's scripts
//   and styles by their SHA-256 and nothing else, so that no text of a run can become code.
// errors: Internal, naming a file of the page that would end its own element.
// cost: O(bytes). threads: safe, no state.
absl::StatusOr<std::string> HtmlReport(const nlohmann::ordered_json& documents);

}  // namespace eplb::cli

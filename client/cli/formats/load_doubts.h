// Tables of bare numbers that look like something else than what they are read as: a heading or an
// index of pandas, the long form of a table, a placement, a matrix of zeros and ones.
// threads: safe, no state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/formats/load_window.h"
#include "placement/placement.h"

namespace eplb {

// Checks the windows of a table in which no word marks it as a load. The front window alone is
// checked for headings, indices and long forms.
// returns: a sentence for a table that is doubtful, empty otherwise. errors: InvalidArgument for a
// table that no router can have counted; the message has the form in which any load is read.
// cost: O(windows * L * E).
absl::StatusOr<std::string> DoubtsAboutLoad(const std::vector<LoadWindow>& windows, TableKind kind);

// Checks a map [layers, slots] of a CSV file for a heading or an index. returns, errors: as above.
absl::StatusOr<std::string> DoubtsAboutMap(const IndexMatrix& slots);

// True for the name of an array that holds a part of a placement, such as phy2log.
bool NamesPlacement(std::string_view array);

}  // namespace eplb

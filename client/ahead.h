// What ranks say of rows that were to be staged ahead of the boundary.
#ifndef EPLB_CLIENT_AHEAD_H_
#define EPLB_CLIENT_AHEAD_H_

#include <string>
#include <string_view>

namespace eplb {

// Why a chunk is dropped on a rank whose own rows did not change.
std::string ChangedElsewhere();

// "a; b"; what is empty says nothing.
std::string JoinReasons(std::string_view first, std::string_view second);

}  // namespace eplb

#endif  // EPLB_CLIENT_AHEAD_H_

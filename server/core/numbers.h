// Bounds of the numbers that a rank can raise: versions, terms, launches and steps. A file of its
// own because every message's checks share them.
#ifndef EPLB_SERVER_CORE_NUMBERS_H_
#define EPLB_SERVER_CORE_NUMBERS_H_

#include <cstdint>

namespace eplb::core {

inline constexpr int64_t kMaxNumber = int64_t{1} << 62;  // of any message: room to add
// What one Hello may raise a number of its job by. A rank that invents numbers needs 2^30 Hellos to
// reach kMaxNumber, so a job's name is never used up; a store that lost its job lost fewer.
inline constexpr int64_t kMaxJump = int64_t{1} << 32;

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_NUMBERS_H_

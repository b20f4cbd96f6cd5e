// 64-bit checksum of a row's bytes, equal on CPU and GPU: compared at source and in staging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace eplb::cuda {

// The sum modulo 2^64 of ChecksumLane over the 8-byte lanes of `bytes`, plus ChecksumLength.
// Finds flips, swaps, shifts and truncation; it is no defence against an adversary. Any alignment.
// On the GPU: LaunchCopyRows in copy.h, of rows without a destination.
// cost: three multiplications a lane, several GB/s on one core.
uint64_t ChecksumOnHost(std::span<const std::byte> bytes);

}  // namespace eplb::cuda

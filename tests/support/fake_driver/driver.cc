// The one symbol of libcuda that tells whose memory a pointer is: EPLB_FAKE_GPU_MEMORY=address
// names the first byte of 4096 that are a GPU's.
#include <cstdint>
#include <cstdlib>

// NOLINTNEXTLINE(readability-identifier-naming): the name is libcuda's
extern "C" int cuPointerGetAttribute(void* value, int attribute, uint64_t pointer) {
  constexpr int kInvalidValue = 1;
  constexpr int kMemoryType = 2;
  constexpr unsigned int kDevice = 2;
  constexpr uint64_t kBytes = 4096;
  const char* text = std::getenv("EPLB_FAKE_GPU_MEMORY");
  if (attribute != kMemoryType || text == nullptr) return kInvalidValue;
  const uint64_t first = std::strtoull(text, nullptr, 0);
  if (pointer < first || pointer >= first + kBytes) return kInvalidValue;
  *static_cast<unsigned int*>(value) = kDevice;
  return 0;
}

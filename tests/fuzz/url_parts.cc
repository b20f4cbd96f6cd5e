#include "tests/fuzz/url_parts.h"

// Apart from Eigen's users: under clang one's macros are not the other's.
#include <httplib.h>

namespace eplb::fuzz {

UrlParts SplitUrl(const std::string& url) {
  UrlParts parts;
  const size_t mark = url.find('?');
  parts.path = httplib::detail::decode_url(url.substr(0, mark), /*convert_plus_to_space=*/false);
  if (mark != std::string::npos) {
    httplib::detail::parse_query_text(url.substr(mark + 1), parts.query);
  }
  return parts;
}

}  // namespace eplb::fuzz

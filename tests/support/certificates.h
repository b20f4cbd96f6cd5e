// Certificates that tests make for themselves: nothing secret is kept in the repository.
#pragma once

#include <memory>
#include <string>

namespace eplb {

struct IssuedCertificate {
  std::string cert;  // PEM
  std::string key;   // PEM
};

// A certificate authority that lives as long as the test. threads: one caller.
class TestAuthority {
 public:
  TestAuthority();
  ~TestAuthority();
  TestAuthority(TestAuthority&&) noexcept;

  const std::string& pem() const { return pem_; }
  // names: as OpenSSL writes subjectAltName, e.g. "DNS:localhost,URI:spiffe://x/y"; empty: none.
  // Valid from a day ago until `days` from now; -1 has expired.
  IssuedCertificate Issue(const std::string& names, int days = 1);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  std::string pem_;
};

}  // namespace eplb

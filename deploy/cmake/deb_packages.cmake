# Read by cpack: what depends on the version that is packaged.
set(whole_version "${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")
# Each package has a summary of its own; the project's would stand in front of it.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")
# The packages need one command of systemd, which creates the user; machines without systemd have a package with that command alone.
set(CPACK_DEBIAN_EPLBD_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers | systemd-sysusers")
set(CPACK_DEBIAN_EPLBD_PACKAGE_RECOMMENDS "eplbctl (= ${whole_version})")
set(CPACK_DEBIAN_EPLBD_PACKAGE_SUGGESTS "eplb-doc, prometheus")
set(CPACK_DEBIAN_EPLBCTL_PACKAGE_SUGGESTS "eplb-doc")
set(CPACK_DEBIAN_LIBEPLB-DEV_PACKAGE_DEPENDS "libeplb0 (= ${whole_version})")
set(CPACK_DEBIAN_LIBEPLB-DEV_PACKAGE_SUGGESTS "eplb-doc")
set(CPACK_DEBIAN_PYTHON3-EPLB_PACKAGE_DEPENDS
  "python3 (>= 3.9), python3-numpy, libeplb0 (>= ${CPACK_PACKAGE_VERSION})")
set(CPACK_DEBIAN_PYTHON3-EPLB_PACKAGE_RECOMMENDS "eplbctl (>= ${CPACK_PACKAGE_VERSION})")
set(CPACK_DEBIAN_PYTHON3-EPLB_PACKAGE_SUGGESTS "python3-torch, eplb-doc, eplbd")

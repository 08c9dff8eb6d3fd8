# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCES=... -DVERSION=... -DINPUT=... -DOUTPUT=... -P: writes OUTPUT where its text changes.
execute_process(COMMAND git -C "${SOURCES}" describe --always --abbrev=12 --dirty=+
                OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT COMMIT)
  set(COMMIT "unknown")
endif()
configure_file("${INPUT}" "${OUTPUT}" @ONLY)

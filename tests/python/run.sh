#!/bin/sh
# Tests of the Python package.   run.sh SOURCE_DIR WORK_DIR MODULE numpy|torch|wheel
#   numpy  the exports' ABI and the package with NumPy, in a virtual environment of WORK_DIR's own
#   torch  with torch, by the interpreter WEFT_TEST_PYTHON, else python3, where that can import it
#   wheel  builds a wheel without GPU code, installs it alone in another environment, and uses it
# Without python3, its venv or the package index it skips (77), and says so; WEFT_PYTHON chooses another interpreter.
set -eu
source_dir=$1 work=$2 module=$3 part=$4
here=$source_dir/tests/python
python=${WEFT_PYTHON:-python3}
mkdir -p "$work"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PIP_DEFAULT_TIMEOUT="${PIP_DEFAULT_TIMEOUT:-30}"

skip() {
  echo "python.$part: skipped: $*"
  exit 77
}

# Makes $work/NAME with packages in it, once.
environment() {
  folder=$work/$1
  shift
  [ -f "$folder/.done" ] && return
  rm -rf "$folder"
  "$python" -m venv "$folder" >"$folder.log" 2>&1 || skip "$python has no venv (Debian: python3-venv)"
  "$folder/bin/python" -m pip install -q --retries 1 "$@" >>"$folder.log" 2>&1 || {
    tail -3 "$folder.log"
    skip "$* could not be fetched"
  }
  touch "$folder/.done"
}

command -v "$python" >/dev/null || skip "no $python"
case $part in
numpy)
  environment venv apache-tvm-ffi numpy pytest
  include=$("$work/venv/bin/python" -c 'import tvm_ffi.libinfo as l; print(l.find_include_path())')
  dlpack=$("$work/venv/bin/python" -c 'import tvm_ffi.libinfo as l; print(l.find_dlpack_include_path())')
  "${CC:-cc}" -std=c11 -fsyntax-only -I"$source_dir/python/ffi" -isystem "$include" -isystem "$dlpack" "$here/abi.c"
  export PYTHONPATH="$source_dir/python" WEFT_FFI_LIBRARY="$module"
  "$work/venv/bin/python" -m pytest -q -p no:cacheprovider "$here/test_numpy.py"
  ;;
torch)
  python=${WEFT_TEST_PYTHON:-$python}
  "$python" -c 'import torch' 2>/dev/null || skip "$python has no torch (WEFT_TEST_PYTHON names another)"
  export PYTHONPATH="$source_dir/python" WEFT_FFI_LIBRARY="$module"
  if ! "$python" -c 'import tvm_ffi, numpy, pytest' 2>/dev/null; then
    [ -d "$work/site" ] || "$python" -m pip install -q --target "$work/site" apache-tvm-ffi numpy pytest ||
      skip "apache-tvm-ffi could not be fetched"
    PYTHONPATH=$PYTHONPATH:$work/site
  fi
  "$python" -m pytest -q -p no:cacheprovider --show-capture=no "$here"
  ;;
wheel)
  environment venv apache-tvm-ffi numpy pytest
  rm -rf "$work/wheel"
  mkdir "$work/wheel"
  "$work/venv/bin/python" -m pip wheel -q --no-deps -w "$work/wheel" --config-settings build-dir="$work/wheel-build" \
    --config-settings cmake.define.WEFT_CUDA=OFF "$source_dir" >"$work/wheel.log" 2>&1 || {
    if grep -q "scikit-build-core" "$work/wheel.log" && ! grep -q "CMake Error\|error:.*\.c" "$work/wheel.log"; then
      tail -3 "$work/wheel.log"
      skip "scikit-build-core could not be fetched"
    fi
    tail -40 "$work/wheel.log"
    exit 1
  }
  wheel=$(ls "$work/wheel")
  case $wheel in weft-*-py3-none-*.whl) ;; *)
    echo "$wheel: expected one wheel for every CPython, py3-none"
    exit 1
    ;;
  esac
  environment bare apache-tvm-ffi numpy
  "$work/bare/bin/python" -m pip install -q --no-deps --force-reinstall "$work/wheel/$wheel"
  cd "$work"
  env -u PYTHONPATH -u WEFT_FFI_LIBRARY -u WEFT_BLAS "$work/bare/bin/python" "$here/use_wheel.py"
  ;;
*)
  echo "run.sh: no part \"$part\"" >&2
  exit 2
  ;;
esac

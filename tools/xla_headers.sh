# XLA's FFI headers, out of the wheel that has them: sh tools/xla_headers.sh FOLDER
set -e
python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 \
  --platform manylinux_2_27_x86_64 --dest "$1" 'jaxlib>=0.10'
python3 -m zipfile -e "$1"/jaxlib-*.whl "$1"

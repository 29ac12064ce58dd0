from potstill.app.cli import main

main()

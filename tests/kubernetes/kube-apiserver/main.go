// kube-apiserver, as its own main package starts it.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"

	_ "time/tzdata"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
